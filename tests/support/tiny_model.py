"""A tiny random model on disk, written by the project's own functions."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import tokenizers

from dart_jax.data.stdlib import function_prompts, read, stdlib
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.networks.pure import init_params
from dart_jax.models.rope import Rope
from dart_jax.ngram import NgramModel
from dart_jax.weights.checkpoint import save_drafter, save_target
from train.objective.drafter_shape import DrafterShape
from train.recipes.demo_stages import tokenize
from train.recipes.language_model import train_tokenizer


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes like the demo's, but smaller."""

    vocab_size: int = 300

    @property
    def target(self) -> TargetConfig:
        return TargetConfig(
            vocab_size=self.vocab_size,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=7,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=64,
            rope=Rope(1e4),
            tie_word_embeddings=True,
            max_position_embeddings=2048,
        )

    @property
    def drafter(self) -> DartConfig:
        """Of four positions."""
        config = DrafterShape(positions=4).config(self.target)
        assert isinstance(config, DartConfig)
        return config


SHAPES = Shapes()
_FILES = [stdlib() / name for name in ("heapq.py", "bisect.py", "shlex.py")]


class TinyModel(NamedTuple):
    """Paths of the parts, and token prompts of different lengths."""

    target: Path
    drafter: Path
    ngram: Path
    prompts: list[np.ndarray]


@functools.cache
def make(base: Path) -> TinyModel:
    """Writes the model into `base`, once per test session."""
    directory = base / "tiny"
    model = TinyModel(directory / "target", directory / "drafter", directory / "ngram", [])
    tokenizer = train_tokenizer(map(read, _FILES), SHAPES.vocab_size)
    write_target(model.target, SHAPES.target, tokenizer)
    write_drafter(model.drafter, SHAPES.drafter)
    NgramModel.count(tokenize(tokenizer, _FILES)).save(model.ngram)
    texts = function_prompts(read(_FILES[0]))
    model.prompts.extend(np.array(tokenizer.encode(text).ids[:40]) for text in texts[:2])
    model.prompts.append(model.prompts[0][:7])
    return model


def write_target(directory: Path, config: TargetConfig, tokenizer: tokenizers.Tokenizer) -> None:
    """A random target with its tokenizer."""
    save_target(directory, config, init_params(config, 0), eos=(0,))
    tokenizer.save(str(directory / "tokenizer.json"))


def write_drafter(directory: Path, config: DartConfig) -> None:
    """A random drafter over its whole vocabulary."""
    table = np.zeros((config.vocab_size, config.hidden_size), np.float32)
    embedding = None if config.shares_embedding else jnp.asarray(table)
    ids = np.arange(config.vocab_size)
    save_drafter(directory, config, init_params(config, 1), ids, embedding=embedding)
