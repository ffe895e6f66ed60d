"""The reading of prompts: their tokens go into the caches of target and drafter."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting import PromptRows
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.models.cache import Cache, first_rows, keep_rows
from dart_jax.models.pure import bind


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
    none, token = jnp.zeros((batch,), jnp.int32), jnp.zeros((batch, 1), jnp.int32)
    read = partial(read_rows, config, params, None, token, token, none, 0, capacity)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(read))


def read_rows(
    config: DecodeConfig,
    params: DecodeParams,
    caches: Caches | None,
    tokens: jax.Array,
    following: jax.Array,
    start: jax.Array,
    filled: int,
    capacity: int,
) -> Caches:
    """Reads tokens [B, C] at the positions from `start` [B] on, given the tokens after each; for
    `filled` and `capacity` see `PromptRows`."""
    target = bind(config.target, params["target"], config.execution.target)
    cache, draft_state = (None, None) if caches is None else caches
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
            capacity,
            config.execution.drafter,
        )
        with jax.named_scope("draft"):
            draft_state = config.drafting.read(draft_state, rows)
    return Caches(keep_rows(cache, out.rows, start, capacity), draft_state)
