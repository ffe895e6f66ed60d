"""Rebuild the demo model from the standard library: tokenizer, target, drafter and n-gram model.

    python -m train.demo --work build/demo --export dart_jax/demo

The drafter is trained by `train.drafter` in three stages: without pair scores with the recipe
`train/demo.toml`; pair scores for it with `train/demo_pairs.toml`; and both further together with
`train/demo_joint.toml`.

Every stage except the n-gram model keeps its result in the work directory and is not repeated;
training stages resume from their newest checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers

from dart_jax.data.packages import package_files
from dart_jax.data.stdlib import HELD_OUT, function_prompts, held_out_files, read, training_files
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
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
from train.language_model import (
    END_OF_TEXT,
    TokenWindows,
    held_out_loss,
    lm_losses,
    train_tokenizer,
)
from train.recipes import begin, half, package, train_recipe
from train.regenerate import RegenerateConfig
from train.regenerate import run as regenerate
from train.run.config import TrainerConfig
from train.run.trainer import Trainer

# The drafter's recipes; each stage starts from the one before it.
_RECIPES = {"drafter": "demo.toml", "pairs": "demo_pairs.toml", "joint": "demo_joint.toml"}


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
    """Tokens per row of the target's training."""
    batch_size: int = 8
    """Rows per update."""
    library_copies: int = 4
    """Times that the target's text holds the standard library, besides the other packages once."""
    target_steps: int = 6000
    """Training steps of the target, with Muon."""
    target_lr: float = 5e-3
    """Learning rate of the target at the end of the warm-up."""
    max_new_tokens: int = 128
    """Tokens that the target generates after a function's head."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type == "int" and field.name != "seed" and getattr(self, field.name) < 1:
                raise UserError(f"--{field.name.replace('_', '-')} must be at least 1")
        # Raises for the other options that are out of range.
        TrainerConfig(lr=self.target_lr, seed=self.seed)

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


def tokenize(tokenizer: tokenizers.Tokenizer, files: list[Path]) -> list[np.ndarray]:
    """Returns one uint16 array per file, each ending with the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = tokenizer.encode_batch([read(file) for file in files])
    return [np.array([*document.ids, end], np.uint16) for document in encoded]


def train_target(config: DemoConfig, tokens: np.ndarray, held_out: np.ndarray, end: int) -> None:
    """Trains the target, unless it exists.

    Args:
      config: the demo's configuration.
      tokens: int [M], the concatenated documents.
      held_out: int [H], held-out text for evaluation during training.
      end: id of the end-of-text token.
    """
    if (config.work / "target" / "model.safetensors").is_file():
        return
    shape = config.target
    recipe = TrainerConfig(
        steps=config.target_steps,
        batch_size=config.batch_size,
        optimizer="muon",
        lr=config.target_lr,
        warmup=1 / 16,
        final_lr=1 / 20,
        clip=1.0,
        b2=0.95,
        weight_decay=0.1,
        save_every=200,
        eval_every=200,
        seed=config.seed,
    )
    params = Trainer(
        "target",
        params=init_params(shape, config.seed),
        loss=lambda params, frozen, batch, key: lm_losses(shape, params, batch),
        batches=TokenWindows(tokens, config.batch_size, config.context + 1, config.seed),
        config=recipe,
        directory=config.work / "target-training",
        evaluate=held_out_loss(shape, held_out, config.context),
        tokens_per_step=config.batch_size * config.context,
    ).fit()
    save_target(config.work / "target", shape, params, eos=(end,))


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


def train_drafter(config: DemoConfig, answers: Path) -> Path:
    """Trains the drafter on the target's answers; its stages share cached features."""
    options: dict[str, object] = {
        "--target": config.work / "target",
        "--data": answers,
        "--cache": config.work / "drafter-training",
        "--seed": config.seed,
    }
    for name, recipe in _RECIPES.items():
        options["--out"] = config.work / f"{name}-training"
        drafter = train_recipe(Path(__file__).with_name(recipe), options)
        options["--init"] = drafter
    return drafter


def run(config: DemoConfig) -> None:
    """Runs every unfinished stage.

    Raises:
      UserError: the work directory belongs to another configuration.
    """
    results = ("target/tokenizer.json", "*-training/checkpoints/[0-9]*", "answers.jsonl*")
    begun = any(path for pattern in results for path in config.work.glob(pattern))
    begin(config, "stages" * begun)
    with stage("tokenizing the library"):
        path = config.work / "target" / "tokenizer.json"
        if not path.is_file():
            trained = train_tokenizer(map(read, training_files()), config.vocab_size)
            write_atomically(path, trained.to_str().encode())
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        documents = tokenize(tokenizer, training_files())
        packages = tokenize(tokenizer, package_files())
        held_out = tokenize(tokenizer, [f for group in HELD_OUT for f in held_out_files(group)])
    all_held_out, end = np.concatenate(held_out), tokenizer.token_to_id(END_OF_TEXT)
    assert end is not None  # a special token of the tokenizer
    text = np.concatenate(documents * config.library_copies + packages)
    train_target(config, text, all_held_out[:20_000], end)
    model, params = load_target(config.work / "target")
    loss = held_out_loss(model, all_held_out, config.context)(params)
    print(f"target: {loss['held_out_loss']:.3f} nats per token on all held-out text")
    prompts = [prompt for file in training_files() for prompt in function_prompts(read(file))]
    longest = config.context // 4
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
        package(drafter, config.export / "drafter")
        for name in ("target/tokenizer.json", "ngram.dng"):
            write_atomically(config.export / name, (config.work / name).read_bytes())


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program(RESUMABLE):
        run(parse(DemoConfig, args, __doc__))


if __name__ == "__main__":
    main()
