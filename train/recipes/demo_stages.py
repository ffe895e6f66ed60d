"""The stages of `train.recipes.demo`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import tokenizers

from dart_jax.data.stdlib import HELD_OUT, function_prompts, held_out_files, read, training_files
from dart_jax.files import write_atomically
from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import init_params
from dart_jax.models.rope import Rope
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.progress import stage
from dart_jax.weights.checkpoint import load_eos, load_target, save_target
from train.drafter.program import half
from train.recipes.config import DemoConfig
from train.recipes.language_model import (
    END_OF_TEXT,
    TokenWindows,
    held_out_loss,
    lm_losses,
    package_files,
    train_tokenizer,
)
from train.recipes.stages import WINDOW, begin, package, train_recipe
from train.regenerate.config import RegenerateConfig
from train.regenerate.program import run as regenerate
from train.regenerate.program import unfinished
from train.run.config import TrainerConfig
from train.run.trainer import Trainer

# The drafter's recipes; each stage starts from the one before it.
_RECIPES = {"drafter": "demo", "pairs": "demo_pairs", "joint": "demo_joint"}

# Qwen3 with heads that share one key/value head.
_TARGET = TargetConfig(
    vocab_size=4096,
    hidden_size=320,
    intermediate_size=896,
    num_hidden_layers=8,
    num_attention_heads=5,
    num_key_value_heads=1,
    head_dim=64,
    rope=Rope(1e4),
    tie_word_embeddings=True,
    max_position_embeddings=2048,
)
_TARGET_RECIPE = TrainerConfig(
    steps=6000,
    batch_size=8,
    optimizer="muon",
    lr=5e-3,
    warmup=1 / 16,
    final_lr=1 / 20,
    clip=1.0,
    b2=0.95,
    weight_decay=0.1,
    save_every=200,
    eval_every=200,
)
_CONTEXT = 512  # tokens per row of the target's training
_COPIES = 4  # of the standard library in the target's text, besides the other packages once


def tokenize(tokenizer: tokenizers.Tokenizer, files: list[Path]) -> list[np.ndarray]:
    """Returns one uint16 array per file, each ending with the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encodings = tokenizer.encode_batch([read(file) for file in files])
    return [np.array([*document.ids, end], np.uint16) for document in encodings]


def train_target(config: DemoConfig, tokens: np.ndarray, held_out: np.ndarray, end: int) -> None:
    """Trains the target, unless it exists, on concatenated documents, int [M]; `held_out`, int [H],
    are for evaluation, and `end` is the end-of-text token."""
    if (config.work / "target" / "model.safetensors").is_file():
        return
    recipe = dataclasses.replace(_TARGET_RECIPE, seed=config.seed)
    params = Trainer(
        "target",
        params=init_params(_TARGET, config.seed),
        loss=lambda params, frozen, batch, key: lm_losses(_TARGET, params, batch),
        batches=TokenWindows(tokens, recipe.batch_size, _CONTEXT + 1, config.seed),
        config=recipe,
        directory=config.work / "target-training",
        evaluate=held_out_loss(_TARGET, held_out, _CONTEXT),
        tokens_per_step=recipe.batch_size * _CONTEXT,
    ).fit()
    save_target(config.work / "target", _TARGET, params, eos=(end,))


def make_answers(config: DemoConfig, prompts: list[str]) -> Path:
    """Lets the target complete documented functions, greedily and sampled, unless already done."""
    path = config.work / "answers.jsonl"
    if not path.is_file() or unfinished(path):
        functions = config.work / "functions.jsonl"
        lines = [json.dumps({"text": prompt}) for prompt in prompts]
        write_atomically(functions, "\n".join(lines).encode())
        options = RegenerateConfig(
            target=str(config.work / "target"),
            data=(str(functions),),
            out=path,
            temperature=(0.0, 1.0),
            max_new_tokens=128,
            batch_size=64,
            seed=config.seed,
        )
        regenerate(options)
    return path


def train_drafter(config: DemoConfig, answers: Path) -> Path:
    """Trains the drafter on the target's answers; its stages share cached features."""
    cache, init, drafter = config.work / "drafter-training", [], config.work
    shared = ["--target", config.work / "target", "--data", answers, "--seed", config.seed]
    for name, recipe in _RECIPES.items():
        out = config.work / f"{name}-training"
        drafter = train_recipe(recipe, [*shared, "--cache", cache, "--out", out, *init])
        init = ["--init", drafter]
    return drafter


def run(config: DemoConfig) -> None:
    """Runs every unfinished stage; raises UserError if the work directory belongs to another
    configuration."""
    results = ("target/tokenizer.json", "*-training/checkpoints/[0-9]*", "answers.jsonl*")
    begun = any(path for pattern in results for path in config.work.glob(pattern))
    begin(config, "stages" * begun)
    with stage("tokenizing the library"):
        path = config.work / "target" / "tokenizer.json"
        if not path.is_file():
            trained = train_tokenizer(map(read, training_files()), _TARGET.vocab_size)
            write_atomically(path, trained.to_str().encode())
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        documents = tokenize(tokenizer, training_files())
        packages = tokenize(tokenizer, package_files())
        held_out = tokenize(tokenizer, [f for group in HELD_OUT for f in held_out_files(group)])
    all_held_out, end = np.concatenate(held_out), tokenizer.token_to_id(END_OF_TEXT)
    assert end is not None  # a special token of the tokenizer
    text = np.concatenate(documents * _COPIES + packages)
    train_target(config, text, all_held_out[:20_000], end)
    model, params = load_target(config.work / "target")
    loss = held_out_loss(model, all_held_out, _CONTEXT)(params)
    print(f"target: {loss['held_out_loss']:.3f} nats per token on all held-out text")
    prompts = [prompt for file in training_files() for prompt in function_prompts(read(file))]
    longest = _CONTEXT // 4
    lengths = map(len, tokenizer.encode_batch(prompts))
    short = [p for p, length in zip(prompts, lengths, strict=True) if length <= longest]
    answers = make_answers(config, short)
    drafter = train_drafter(config, answers)
    with stage("counting the n-grams"):
        with answers.open() as lines:
            completed = [np.array(json.loads(line)["tokens"], np.uint16) for line in lines]
        ngram = NgramModel.count(
            [*documents, *completed],
            vocab_size=tokenizer.get_vocab_size(),
            fingerprint=tokenizer_fingerprint(tokenizer),
        )
        ngram.save(config.work / "ngram.dng")
    if config.export is not None:
        half_target, eos = half(params), load_eos(config.work / "target")
        save_target(config.export / "target", model, half_target, eos)
        package(drafter, config.export / "drafter", WINDOW)
        for name in ("target/tokenizer.json", "ngram.dng"):
            write_atomically(config.export / name, (config.work / name).read_bytes())
