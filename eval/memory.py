"""Memory that decoding needs, per model, as a table in Markdown.

    python -m eval.memory
    python -m eval.memory --shape qwen3-8b --length 32768 --batch-size 4
    python -m eval.memory --shape llama-3-70b --weights int8
    python -m eval.memory --target Qwen/Qwen3-1.7B --drafter fvliang/qwen1.7b-dart

Reads only shapes: nothing is allocated, and of a target and drafter only `config.json` is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.generation.defaults import MAX_NODES, length_bucket
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.platform.int8 import round_params
from dart_jax.models.pure import abstract_params
from dart_jax.programs.command_line import parse, program
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import (
    read_any_drafter_config,
    read_target_config,
    resolve_dtype,
)
from dart_jax.weights.drafter_files import check_fit
from eval.latency.shapes import QWEN3, drafter_of, parameters, target_of

_FLOAT = 4  # bytes of a logit
_GB = 1e9

# Drafters with weights, and targets.
AnyDrafter = DrafterConfig | Eagle3Config | TargetConfig


@dataclasses.dataclass(frozen=True)
class MemoryConfig:
    """Which models, and what they decode."""

    target: str | None = None
    """Directory or hub repository of a target, instead of --shape."""
    drafter: str | None = None
    """Directory or hub repository of a drafter for --target; by default a DART drafter of the
    target's shape."""
    shape: tuple[str, ...] = (*QWEN3, "llama-3-8b", "llama-3-70b")
    """Names of published shapes; case does not matter."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """dtype of weights and caches. On a CPU, the weights of products that bfloat16 holds exactly
    take 2 bytes each also in float32."""
    weights: Literal["stored", "int8"] = "stored"
    """How the weights of linear layers and experts are stored: with that dtype, or in 8 bits with a
    scale for each output, as on GPUs and TPUs."""
    length: int = 4096
    """Tokens of prompt and new text together."""
    batch_size: int = 1
    """Sequences decoded together."""
    tree_nodes: int = 60
    """Nodes of the draft tree, beside the root."""

    def __post_init__(self) -> None:
        for name in ("length", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if not 0 <= self.tree_nodes <= MAX_NODES:
            raise UserError(f"--tree-nodes must be from 0 to {MAX_NODES}, got {self.tree_nodes}")
        if self.drafter is not None and self.target is None:
            raise UserError("--drafter needs the --target that it was made for")

    def models(self) -> list[tuple[str, TargetConfig, AnyDrafter]]:
        """Returns the name, the target and the drafter of each model.

        Raises:
          UserError: a shape is unknown, or a config cannot be read.
        """
        if self.target is None:
            targets = [(name.lower(), target_of(name)) for name in self.shape]
            return [(name, target, drafter_of(target)) for name, target in targets]
        target = read_target_config(_config_of(self.target))
        if self.drafter is None:
            drafter = drafter_of(target)
        else:
            drafter = read_any_drafter_config(_config_of(self.drafter))
            check_fit(target, drafter)
        return [(Path(self.target).name, target, drafter)]


def _config_of(name: str) -> Path:
    return hub.resolve(name, patterns=["config.json"])


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on the device.

    Attributes:
      target: the target's weights; tied embeddings once.
      drafter: the drafter's weights.
      caches: the KV caches of target and drafter, which are allocated at their full length.
      verification: what a verification returns for every node: its logits in float32, features,
        keys and values. What XLA needs besides, for one layer at a time, is not counted.
    """

    target: int
    drafter: int
    caches: int
    verification: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.target + self.drafter + self.caches + self.verification


def cache_row(config: AnyDrafter, itemsize: int) -> int:
    """Returns the bytes of one token's keys and values in all layers of a model's cache."""
    layers = 1 if isinstance(config, Eagle3Config) else config.num_hidden_layers
    return itemsize * layers * 2 * config.num_key_value_heads * config.head_dim


def memory(
    target: TargetConfig,
    drafter: AnyDrafter,
    *,
    dtype: str,
    length: int,
    batch_size: int,
    tree_nodes: int,
    weights: Literal["stored", "int8"] = "stored",
) -> Memory:
    """Computes what one model needs.

    Args:
      target: the target's shapes.
      drafter: the drafter's, of any kind.
      dtype: of weights and caches.
      length: tokens of prompt and new text together, at most.
      batch_size: sequences decoded together.
      tree_nodes: nodes of the draft tree, beside the root.
      weights: how those of linear layers and experts are stored.
    """
    itemsize = np.dtype(resolve_dtype(dtype)).itemsize
    config = DecodeConfig(target, drafter, tree_nodes)
    rows = batch_size * config.capacity(min(length_bucket(length), target.max_length))
    features = itemsize * len(config.feature_layers) * target.hidden_size
    node = _FLOAT * target.vocab_size + features + cache_row(target, itemsize)
    return Memory(
        target=_weight_bytes(target, dtype, weights),
        drafter=_weight_bytes(drafter, dtype, weights),
        caches=rows * (cache_row(target, itemsize) + cache_row(drafter, itemsize)),
        verification=batch_size * (tree_nodes + 1) * node,
    )


def _weight_bytes(config: AnyDrafter, dtype: str, weights: Literal["stored", "int8"]) -> int:
    """Bytes of a model's weights."""
    if weights == "stored":
        return np.dtype(resolve_dtype(dtype)).itemsize * parameters(config)
    if not isinstance(config, TargetConfig):
        return _rounded_bytes(config, dtype)
    config = dataclasses.replace(config, tie_word_embeddings=False)  # the head is rounded
    if config.moe is not None:
        return _rounded_bytes(config, dtype)
    # As in `parameters`: all layers of a dense target are the same.
    one, two = (
        _rounded_bytes(dataclasses.replace(config, num_hidden_layers=n), dtype) for n in (1, 2)
    )
    return one + (config.num_hidden_layers - 1) * (two - one)


def _rounded_bytes(config: AnyDrafter, dtype: str) -> int:
    """Bytes of a model's weights, those of its linear layers and experts in 8 bits."""
    stored = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, resolve_dtype(dtype)), abstract_params(config)
    )
    held = jax.tree.leaves(jax.eval_shape(round_params, stored))
    return sum(x.size * x.dtype.itemsize for x in held)


HEADER = ("model", "target", "drafter", "caches", "verification", "together")


def table(rows: Sequence[tuple[str, Memory]]) -> str:
    """Returns a Markdown table, in gigabytes (10^9 bytes)."""
    lines = [HEADER, ("---", *["---:"] * (len(HEADER) - 1))]
    for name, each in rows:
        parts = (each.target, each.drafter, each.caches, each.verification, each.total)
        lines.append((name, *(f"{part / _GB:.2f}" for part in parts)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run(config: MemoryConfig) -> str:
    """Computes and returns the table; raises UserError if a model cannot be read."""
    options = {
        name: getattr(config, name)
        for name in ("dtype", "length", "batch_size", "tree_nodes", "weights")
    }
    return table(
        [(name, memory(target, drafter, **options)) for name, target, drafter in config.models()]
    )


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        print(run(parse(MemoryConfig, args, __doc__)))


if __name__ == "__main__":
    main()
