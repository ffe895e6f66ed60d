"""The least that the stages of a step must move and compute, from the shapes of their arrays.

Bytes are those that cross the device's memory once: weights, used rows of the caches, inputs and
outputs of a stage. Operations are those of matrix products, two per multiply-add. Masked rows of
the caches are not counted, since they are not needed. Of a mixture's experts those are counted that
rows reach if their experts are drawn at random: trained routers send the rows of a tree to fewer.
Where devices share models (`dart_jax.models.sharding`), costs are those of one of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.state import DecodeConfig
from dart_jax.models.config import MoEConfig
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.sharding.rules import one_device
from eval.latency.abstract_arrays import held_bytes, held_shape, placed_weights

_INT = _FLOAT = 4  # bytes of ids and of logits


class Cost(NamedTuple):
    """The least work of a stage.

    Attributes:
      bytes: read and written.
      operations: of matrix products.
    """

    bytes: int
    operations: int

    def limit(self, bandwidth: float, rate: float) -> float:
        """Seconds at so many bytes and operations per second."""
        return max(self.bytes / bandwidth, self.operations / rate)


def costs(config: DecodeConfig, dtype: Any, batch: int, context: int) -> dict[str, Cost]:
    """Returns the costs by stage: verify, accept, compact, draft, top-k and step, the whole, whose
    intermediate results need not cross the memory. Without a drafter, draft and top-k are nothing.

    Args:
      config: what steps are compiled for; its drafter, if any, is a DART drafter.
      dtype: of weights and caches.
      batch: sequences decoded together, by all devices.
      context: cached tokens of each.
    """
    execution, item = config.execution, jnp.dtype(dtype).itemsize
    b, nodes, path = batch // execution.groups, config.nodes + 1, config.max_depth + 1
    unfused = dataclasses.replace(execution, fused=False)
    params = placed_weights(dataclasses.replace(config, execution=unfused), dtype)
    target, moe = one_device(config.target, execution.shards), config.target.moe
    layers, tied = target.num_hidden_layers, target.tie_word_embeddings
    row = item * layers * 2 * target.num_key_value_heads * target.head_dim
    features = item * len(config.feature_layers) * target.hidden_size
    logits = b * nodes * _FLOAT * (target.vocab_size // execution.shards)

    read = _read(params["target"], moe, b * nodes, tied=tied)
    read += b * nodes * item * target.hidden_size + b * row * context  # embeddings, cached rows
    attention = 4 * layers * target.num_attention_heads * target.head_dim * (context + nodes)
    products = 2 * _products(params["target"], lambda names: _uses(names, moe), tied=tied)
    operations = b * nodes * round(products + attention)
    verify = Cost(read + logits + b * nodes * (row + features), operations)
    accept = Cost(logits + b * nodes * 3 * _INT, 0)
    compact = Cost(2 * b * path * row, 0)
    step = Cost(read + b * path * row, operations)
    draft = top_k = Cost(0, 0)
    if isinstance(config.drafter, DrafterConfig):
        drafted, drafter, logits, candidates = _draft(config, params["drafter"], b, context, item)
        draft = Cost(drafted + b * path * features + logits, drafter)
        top_k = Cost(logits + candidates, 0)
        step = Cost(step.bytes + drafted + candidates, step.operations + drafter)
    return {
        "verify": verify,
        "accept": accept,
        "compact": compact,
        "draft": draft,
        "top-k": top_k,
        "step": step,
    }


def cached_row(config: DecodeConfig, dtype: Any) -> int:
    """Bytes that a device's caches hold of a token."""
    execution, models = config.execution, [(config.target, config.execution.shards)]
    if isinstance(config.drafter, DrafterConfig):
        models.append((config.drafter, execution.drafter_shards))
    parts = [one_device(model, shards) for model, shards in models]
    heads = sum(2 * x.num_hidden_layers * x.num_key_value_heads * x.head_dim for x in parts)
    return jnp.dtype(dtype).itemsize * heads


def _draft(
    config: DecodeConfig, params: Any, b: int, context: int, item: int
) -> tuple[int, int, int, int]:
    """Returns a drafter's bytes besides features and logits, operations, bytes of its logits, and
    bytes of the candidates."""
    assert isinstance(config.drafter, DrafterConfig)
    path, shards = config.max_depth + 1, config.execution.drafter_shards
    drafter = one_device(config.drafter.shortened(path - 1), shards)
    masks, positions = drafter.draft_length, drafter.num_positions
    # Mask rows are the same until attention: one is computed for all.
    rows = {"fc": path, "q_proj": 2, "k_proj": path + 1, "v_proj": path + 1, "lm_head": positions}
    products = _products(
        params, lambda names: next((rows[x] for x in names if x in rows), 1 + masks)
    )
    width = drafter.num_attention_heads * drafter.head_dim
    products += 2 * width * (1 + masks) * (context + path + masks)
    row = item * 2 * drafter.num_key_value_heads * drafter.head_dim
    moved = held_bytes(params) + b * (path * item * drafter.hidden_size + row * (context + path))
    logits = b * positions * _FLOAT * (drafter.draft_vocab_size // shards)
    candidates = b * positions * config.candidates * (_INT + _FLOAT)
    return moved, 2 * b * round(products), logits, candidates


def _read(params: Any, moe: MoEConfig | None, rows: int, *, tied: bool) -> int:
    """Bytes of the weights that a forward over so many rows reads: all except the embeddings, which
    are read if they are also the head, and the experts that no row reaches."""
    share = 1 if moe is None else 1 - (1 - moe.num_experts_per_tok / moe.num_experts) ** rows
    return round(
        sum(
            held_bytes(leaf) * (share if "experts" in names else 1)
            for names, leaf in _leaves(params)
            if tied or "embed_tokens" not in names
        )
    )


def _products(params: Any, uses: Callable[[list[str]], float], *, tied: bool = False) -> float:
    """Multiply-adds of all matrices, each with as many rows as `uses` says of its path."""
    return sum(
        math.prod(held_shape(leaf)) * uses(names)
        for names, leaf in _leaves(params)
        if leaf.ndim > 1 and (tied or "embed_tokens" not in names)
    )


def _uses(names: list[str], moe: MoEConfig | None) -> float:
    """How often a row is multiplied with a matrix of the target."""
    if moe is None or "experts" not in names:
        return 1
    return moe.num_experts_per_tok / moe.num_experts


def _leaves(params: Any) -> list[tuple[list[str], Any]]:
    """The parameters with the names in their paths."""
    leaves = jax.tree.leaves_with_path(params)
    return [([str(getattr(key, "key", "")) for key in path], leaf) for path, leaf in leaves]
