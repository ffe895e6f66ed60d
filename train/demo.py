"""Rebuild the demo model from the standard library: tokenizer, target, drafters and n-gram model.

    python -m train.demo --work build/demo --export dart_jax/demo

The drafters are trained by `train.drafter`: DART's with the recipe `train/demo.toml`; pair scores
for it with `train/demo_pairs.toml`, and both further together with `train/demo_joint.toml`, which
gives another drafter; EAGLE-3's with `train/demo_eagle3.toml`. The small draft model is trained on
the same answers.

Every stage except the n-gram model keeps its result in the work directory and is not repeated;
training stages resume from their newest checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers

from dart_jax.data.packages import package_files
from dart_jax.data.stdlib import HELD_OUT, function_prompts, held_out_files, read, training_files
from dart_jax.errors import UserError
from dart_jax.files import check_writable, write_atomically
from dart_jax.models.config import TargetConfig
from dart_jax.models.pure import init_params
from dart_jax.models.rope import Rope
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.programs.command_line import RESUMABLE, parse, program
from dart_jax.progress import stage
from dart_jax.weights.checkpoint import (
    load_eos,
    load_target,
    save_target,
)
from train.data.answer_file import unfinished
from train.language_model.loss import held_out_loss, lm_losses
from train.language_model.token_windows import TokenWindows
from train.language_model.tokenizer import end_of_text, train_tokenizer
from train.recipes import half, package, train_recipe
from train.regenerate import RegenerateConfig
from train.regenerate import run as regenerate
from train.run import config_file, work_directory
from train.run.config import TrainerConfig
from train.run.trainer import fit

# Recipes of the drafters, by name, in their order: some start from another.
_RECIPES = Path(__file__).parent
RECIPES = {
    "drafter": _RECIPES / "demo.toml",
    "pairs": _RECIPES / "demo_pairs.toml",
    "joint": _RECIPES / "demo_joint.toml",
    "eagle3": _RECIPES / "demo_eagle3.toml",
}
_STARTS_FROM = {"pairs": "drafter", "joint": "pairs"}

# The packaged drafters.
_EXPORTED = {"drafter": "drafter", "drafter_pairs": "joint", "eagle3": "eagle3"}

# Answers held out to evaluate the draft model.
_HELD_OUT_ANSWERS = 64


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Shape and training of the demo model."""

    work: Path = Path("build/demo")
    """Directory where every stage writes its result."""
    export: Path | None = None
    """Directory to write the packaged model to, in bfloat16."""
    vocab_size: int = 4096
    """Tokens of the tokenizer."""
    hidden_size: int = 320
    """Hidden size of the target; a multiple of 64."""
    intermediate_size: int = 896
    """Intermediate size of the target's feed-forward layers."""
    layers: int = 8
    """Layers of the target."""
    context: int = 512
    """Tokens per row of the target's and the draft model's training."""
    batch_size: int = 8
    """Rows per update."""
    library_copies: int = 4
    """Times that the target's text holds the standard library, besides the other packages once."""
    target_steps: int = 6000
    """Training steps of the target, with Muon."""
    target_lr: float = 5e-3
    """Learning rate of the target at the end of the warm-up."""
    lr: float = 2e-3
    """Learning rate of the draft model at the end of the warm-up."""
    max_new_tokens: int = 128
    """Tokens that the target generates after a function's head."""
    draft_hidden_size: int = 192
    """Hidden size of the small model that drafts token by token."""
    draft_intermediate_size: int = 512
    """Intermediate size of its feed-forward layers."""
    draft_layers: int = 2
    """Its layers."""
    draft_steps: int = 1000
    """Training steps of the draft model; the drafters' number."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type == "int" and field.name != "seed" and getattr(self, field.name) < 1:
                raise UserError(f"--{field.name.replace('_', '-')} must be at least 1")
        # Raises for the other options that are out of range.
        for lr in (self.lr, self.target_lr):
            TrainerConfig(lr=lr, seed=self.seed)

    @property
    def target(self) -> TargetConfig:
        """The target's config: Qwen3 with heads of size 64 that share one key/value head."""
        return TargetConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden_size // 64,
            num_key_value_heads=1,
            head_dim=64,
            rope=Rope(1e4),
            tie_word_embeddings=True,
            max_position_embeddings=2048,
        )

    @property
    def draft_model(self) -> TargetConfig:
        """The draft model's config: a smaller version of the target's."""
        return dataclasses.replace(
            self.target,
            hidden_size=self.draft_hidden_size,
            intermediate_size=self.draft_intermediate_size,
            num_hidden_layers=self.draft_layers,
            num_attention_heads=self.draft_hidden_size // 64,
        )


def check_config(config: DemoConfig) -> None:
    """Records the configuration in the work directory; raises UserError if a stage's result that is
    there was made with another."""
    results = ("target/tokenizer.json", "*-training/checkpoints/[0-9]*", "answers.jsonl*")
    begun = any(path for pattern in results for path in config.work.glob(pattern))
    settings = config_file.options(config)
    for name in ("--work", "--export"):
        del settings[name]
    work_directory.check_settings(config.work, settings, result="stages" * begun)


def make_tokenizer(config: DemoConfig) -> tokenizers.Tokenizer:
    """Trains the tokenizer, or reads the existing one."""
    path = config.work / "target" / "tokenizer.json"
    if not path.is_file():
        tokenizer = train_tokenizer(map(read, training_files()), config.vocab_size)
        write_atomically(path, tokenizer.to_str().encode())
    return tokenizers.Tokenizer.from_file(str(path))


def tokenize(tokenizer: tokenizers.Tokenizer, files: list[Path]) -> list[np.ndarray]:
    """Returns one uint16 array per file, each ending with the end-of-text token."""
    end = end_of_text(tokenizer)
    encoded = tokenizer.encode_batch([read(file) for file in files])
    return [np.array([*document.ids, end], np.uint16) for document in encoded]


def train_language_model(
    config: DemoConfig,
    name: str,
    shape: TargetConfig,
    tokens: np.ndarray,
    held_out: np.ndarray,
    *,
    steps: int,
    lr: float,
    optimizer: Literal["adamw", "muon"],
    end: int,
) -> None:
    """Trains a language model, unless it exists.

    Args:
      config: the demo's configuration.
      name: name of the model's directory.
      shape: the model's config.
      tokens: int [M], the concatenated documents.
      held_out: int [H], held-out text for evaluation during training.
      steps: training steps.
      lr: learning rate at the end of the warm-up.
      optimizer: see `OptimizerConfig`.
      end: id of the end-of-text token.
    """
    if (config.work / name / "model.safetensors").is_file():
        return
    recipe = TrainerConfig(
        steps=steps,
        batch_size=config.batch_size,
        optimizer=optimizer,
        lr=lr,
        warmup=1 / 16,
        final_lr=1 / 20,
        clip=1.0,
        b2=0.95,
        weight_decay=0.1,
        save_every=200,
        eval_every=200,
        seed=config.seed,
    )
    params = fit(
        name,
        params=init_params(shape, config.seed),
        loss=lambda params, frozen, batch, key: lm_losses(shape, params, batch),
        batches=TokenWindows(tokens, config.batch_size, config.context + 1, config.seed),
        config=recipe,
        directory=config.work / f"{name}-training",
        evaluate=held_out_loss(shape, held_out, config.context),
        tokens_per_step=config.batch_size * config.context,
    )
    save_target(config.work / name, shape, params, eos=(end,))


def make_answers(config: DemoConfig, prompts: list[str]) -> Path:
    """Lets the target complete documented functions, greedily and sampled, unless already done."""
    path = config.work / "answers.jsonl"
    if not path.is_file() or unfinished(path):
        functions = config.work / "functions.jsonl"
        lines = [json.dumps({"text": prompt}) for prompt in prompts]
        write_atomically(functions, "\n".join(lines).encode())
        regenerate(
            RegenerateConfig(
                target=str(config.work / "target"),
                data=(str(functions),),
                out=path,
                temperature=(0.0, 1.0),
                max_new_tokens=config.max_new_tokens,
                batch_size=64,
                seed=config.seed,
            )
        )
    return path


def read_answers(path: Path) -> list[np.ndarray]:
    """Returns one uint16 array per answer, prompt included."""
    with path.open() as lines:
        return [np.array(json.loads(line)["tokens"], np.uint16) for line in lines]


def train_drafter(config: DemoConfig, name: str, answers: Path) -> None:
    """Trains a drafter with its recipe on the target's answers; drafters share cached features."""
    options = {
        "--target": config.work / "target",
        "--data": answers,
        "--out": config.work / f"{name}-training",
        "--cache": config.work / "drafter-training",
        "--seed": config.seed,
    }
    if name in _STARTS_FROM:
        options["--init"] = config.work / f"{_STARTS_FROM[name]}-training" / "drafter"
    train_recipe(RECIPES[name], options)


def export(config: DemoConfig, directory: Path) -> None:
    """Writes the packaged model: bfloat16 weights, tokenizer and n-gram model."""
    eos = load_eos(config.work / "target")
    for name in ("target", "draft_model"):
        model, params = load_target(config.work / name)
        save_target(directory / name, model, half(params), eos)
    for name, trained in _EXPORTED.items():
        package(config.work / f"{trained}-training" / "drafter", directory / name)
    for name in ("target/tokenizer.json", "ngram.dng"):
        write_atomically(directory / name, (config.work / name).read_bytes())


def run(config: DemoConfig) -> None:
    """Runs every unfinished stage.

    Raises:
      UserError: the work directory belongs to another configuration.
    """
    for directory in filter(None, (config.work, config.export)):
        check_writable(directory, directory=True)
    check_config(config)
    with stage("tokenizing the library"):
        tokenizer = make_tokenizer(config)
        documents = tokenize(tokenizer, training_files())
        packages = tokenize(tokenizer, package_files())
        held_out = tokenize(tokenizer, [f for group in HELD_OUT for f in held_out_files(group)])
    all_held_out, end = np.concatenate(held_out), end_of_text(tokenizer)
    train_language_model(
        config,
        "target",
        config.target,
        np.concatenate(documents * config.library_copies + packages),
        all_held_out[:20_000],
        steps=config.target_steps,
        lr=config.target_lr,
        optimizer="muon",
        end=end,
    )
    model, params = load_target(config.work / "target")
    loss = held_out_loss(model, all_held_out, config.context)(params)
    print(f"target: {loss['held_out_loss']:.3f} nats per token on all held-out text")
    prompts = [prompt for file in training_files() for prompt in function_prompts(read(file))]
    longest = config.context // 4
    lengths = map(len, tokenizer.encode_batch(prompts))
    short = [p for p, length in zip(prompts, lengths, strict=True) if length <= longest]
    answers = make_answers(config, short)
    made = read_answers(answers)
    train_language_model(
        config,
        "draft_model",
        config.draft_model,
        np.concatenate(made[:-_HELD_OUT_ANSWERS]),
        np.concatenate(made[-_HELD_OUT_ANSWERS:]),
        steps=config.draft_steps,
        lr=config.lr,
        optimizer="adamw",
        end=end,
    )
    for name in RECIPES:
        train_drafter(config, name, answers)
    with stage("counting the n-grams"):
        ngram = NgramModel.count(
            [*documents, *made],
            vocab_size=tokenizer.get_vocab_size(),
            fingerprint=tokenizer_fingerprint(tokenizer),
        )
        ngram.save(config.work / "ngram.dng")
    if config.export is not None:
        export(config, config.export)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program(RESUMABLE):
        run(parse(DemoConfig, args, __doc__))


if __name__ == "__main__":
    main()
