"""The least that a step must move and compute: weights and used rows of the caches, once, and
matrix products. Of a mixture's experts those count that rows reach if they are drawn at random."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.pure import abstract_params
from eval.latency.shapes import cache_row, weight_bytes

_INT = _FLOAT = 4  # bytes of ids and of logits


class Cost(NamedTuple):
    """The least work of a step: bytes read and written, operations of matrix products, two per
    multiply-add."""

    bytes: int
    operations: int

    def limit(self, bandwidth: float, rate: float) -> float:
        """Seconds at so many bytes and operations per second."""
        return max(self.bytes / bandwidth, self.operations / rate)


def cost(config: DecodeConfig, dtype: Any, batch: int, context: int) -> Cost:
    """Returns the cost of a step, whose intermediate results need not cross the memory.

    Args:
      config: what steps are compiled for, on one device; its drafter, if any, is DART's.
      dtype: of weights and caches.
      batch: sequences decoded together.
      context: cached tokens of each.
    """
    target, item, b = config.target, jnp.dtype(dtype).itemsize, batch
    nodes, path = config.nodes + 1, config.max_depth + 1
    read, products = _read(target, b * nodes)
    width = target.num_hidden_layers * target.num_attention_heads * target.head_dim
    moved = item * (read + b * nodes * target.hidden_size)
    moved += b * cache_row(target, dtype) * (context + path)
    operations = 2 * b * nodes * (products + 2 * width * (context + nodes))
    if isinstance(config.drafter, DartConfig):
        drafter = config.drafter.shortened(path - 1)
        traffic, more = _draft(drafter, dtype, b, context, path)
        moved += traffic + b * (path - 1) * config.candidates * (_INT + _FLOAT)
        operations += more
    return Cost(moved, operations)


def _draft(drafter: DartConfig, dtype: Any, b: int, context: int, path: int) -> tuple[int, int]:
    """Returns a drafter's bytes besides features and logits, and its operations."""
    masks = drafter.draft_length
    # Mask rows are the same until attention: one is computed for all.
    rows = {"fc": path, "q_proj": 2, "k_proj": path + 1, "v_proj": path + 1}
    rows |= {"o_proj": 1 + masks, "mlp": 1 + masks, "lm_head": drafter.num_positions}
    products = sum(
        math.prod(shape) * next(rows[name] for name in names if name in rows)
        for names, shape in _shapes(drafter)
        if len(shape) > 1
    )
    width = drafter.num_attention_heads * drafter.head_dim
    products += 2 * width * (1 + masks) * (context + path + masks)
    embeddings = jnp.dtype(dtype).itemsize * b * path * drafter.hidden_size
    rows_read = b * cache_row(drafter, dtype) * (context + path)
    return weight_bytes(drafter, dtype) + embeddings + rows_read, 2 * b * products


def _read(target: TargetConfig, rows: int) -> tuple[int, int]:
    """Returns how many weights a forward over so many rows reads, and with how many each row is
    multiplied: all except the embeddings, which are read if they are also the head, and the experts
    that no row reaches."""
    moe, read, products = target.moe, 0.0, 0.0
    share = 1 if moe is None else moe.num_experts_per_tok / moe.num_experts
    for names, shape in _shapes(target):
        if "embed_tokens" in names and not target.tie_word_embeddings:
            continue
        size, expert = math.prod(shape), "experts" in names
        read += size * (1 - (1 - share) ** rows if expert else 1)
        products += size * (share if expert else 1) * (len(shape) > 1)
    return round(read), round(products)


def _shapes(config: TargetConfig | DartConfig) -> list[tuple[list[str], tuple[int, ...]]]:
    """Returns the names in the path of each parameter, and its shape."""
    leaves = jax.tree.leaves_with_path(abstract_params(config))
    return [([str(getattr(x, "key", "")) for x in path], leaf.shape) for path, leaf in leaves]
