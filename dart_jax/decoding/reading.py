"""The reading of prompts: their tokens go into the caches of target and drafter."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting import PromptRows
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.models.attention.compaction import keep_rows
from dart_jax.models.cache import Cache, first_rows, init_cache
from dart_jax.models.pure import bind, dtype_of


class Caches(NamedTuple):
    """Keys and values of the tokens of a batch that have been read.

    Attributes:
      target: the target's keys and values.
      draft: state of the drafting method (see `DecodeState`).
    """

    target: Cache
    draft: Any


class ChunkShape(NamedTuple):
    """Shape for which a chunk's program is compiled.

    Attributes:
      rows: tokens of each prompt that are read.
      filled: rows of the caches in which the tokens before them are found.
    """

    rows: int
    filled: int


def caches_without_rows(
    config: DecodeConfig, params: DecodeParams, batch: int, capacity: int
) -> Caches:
    """Returns the caches of `batch` prompts of which nothing was read, with `capacity` rows."""
    execution = config.execution
    dtype = execution.target.cache_dtype(dtype_of(params["target"]))
    layers, heads = config.target.num_hidden_layers, config.target.num_key_value_heads
    heads //= execution.target.shards
    target = init_cache(layers, batch, heads, capacity, config.target.head_dim, dtype)
    draft = None
    if config.drafting is not None:
        draft = config.drafting.empty(batch, capacity, dtype, execution.drafter)
    return Caches(target, draft)


def read_rows(
    config: DecodeConfig,
    params: DecodeParams,
    caches: Caches,
    tokens: jax.Array,
    following: jax.Array,
    start: jax.Array,
    filled: int,
) -> Caches:
    """Reads tokens [B, C] at the positions from `start` [B] on, given the tokens after each; for
    `filled` see `PromptRows`."""
    target = bind(config.target, params["target"], config.execution.target)
    cache, draft_state = caches
    count = tokens.shape[1]
    positions = start[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
    causal, before = jnp.tril(jnp.ones((1, count, count), bool)), first_rows(cache, filled)
    out = target(tokens, positions, causal, before, start, config.feature_layers)
    if config.drafting is not None:
        rows = PromptRows(
            target,
            params,
            tokens,
            following,
            out.features,
            positions,
            start,
            filled,
            config.execution.drafter,
        )
        with jax.named_scope("draft"):
            draft_state = config.drafting.read(draft_state, rows)
    kernel = config.execution.attention
    return Caches(keep_rows(cache, out.rows, start, kernel), draft_state)
