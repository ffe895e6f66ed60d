"""Makes the demo model: tokenizer, target, drafter and n-gram model, from the standard library.

    python -m train.demo --work build/demo

Every stage leaves its result in the work directory and is skipped when that result is there;
training stages resume from their newest checkpoint.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import tokenizers
import tyro

from dart_jax.checkpoint import load_target, save_target, write_atomically
from dart_jax.config import TargetConfig
from dart_jax.pure import init_params
from train.corpus import HELD_OUT, held_out_files, read, training_files
from train.data import Windows
from train.lm import held_out_loss, lm_loss
from train.tokenizer import END_OF_TEXT, train_tokenizer
from train.trainer import adamw, fit


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """What the demo model is and how long it trains."""

    work: Path = Path("build/demo")
    vocab_size: int = 4096
    hidden_size: int = 320
    intermediate_size: int = 896
    layers: int = 8
    context: int = 512
    batch: int = 8
    target_steps: int = 1500
    target_lr: float = 2e-3
    seed: int = 0

    @property
    def target(self) -> TargetConfig:
        """The target's shape: Qwen3, heads of 64 sharing one key/value head."""
        return TargetConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden_size // 64,
            num_key_value_heads=1,
            head_dim=64,
            rope_theta=1e4,
            tie_word_embeddings=True,
            max_position_embeddings=2048,
        )


def make_tokenizer(config: DemoConfig) -> tokenizers.Tokenizer:
    """Trains the tokenizer, or reads the one already there."""
    path = config.work / "target" / "tokenizer.json"
    if not path.is_file():
        tokenizer = train_tokenizer(map(read, training_files()), config.vocab_size)
        write_atomically(path, tokenizer.to_str().encode())
    return tokenizers.Tokenizer.from_file(str(path))


def tokenize(tokenizer: tokenizers.Tokenizer, files: list[Path]) -> list[np.ndarray]:
    """One uint16 array a file, each closed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = tokenizer.encode_batch([read(file) for file in files])
    return [np.array([*document.ids, end], np.uint16) for document in encoded]


def train_target(
    config: DemoConfig, documents: list[np.ndarray], held_out: list[np.ndarray]
) -> None:
    """Trains the language model."""
    if (config.work / "target" / "model.safetensors").is_file():
        return
    model = config.target
    params = fit(
        "target",
        params=init_params(model, config.seed),
        loss=lambda params, batch, key: lm_loss(model, params, batch),
        batches=Windows(np.concatenate(documents), config.batch, config.context + 1, config.seed),
        optimizer=adamw(
            config.target_lr, config.target_steps, warmup=config.target_steps // 16, clip=1.0, weight_decay=0.1
        ),
        steps=config.target_steps,
        directory=config.work / "target-training",
        evaluate=held_out_loss(model, np.concatenate(held_out)[:20_000], config.context),
        seed=config.seed,
    )
    save_target(config.work / "target", model, params)


def main(config: DemoConfig) -> None:
    """Runs every stage that is not done."""
    tokenizer = make_tokenizer(config)
    documents = tokenize(tokenizer, training_files())
    held_out = tokenize(tokenizer, [f for group in HELD_OUT for f in held_out_files(group)])
    train_target(config, documents, held_out)


if __name__ == "__main__":
    main(tyro.cli(DemoConfig, description=__doc__))
