"""The reading of prompts: their tokens go into the caches of target and drafter, and are scored if
that is asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting import PromptRows
from dart_jax.decoding.logits import TokenScores, log_probabilities
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.decoding.vocabulary import Vocabulary
from dart_jax.models.attention.compaction import keep_rows
from dart_jax.models.cache import Cache, first_rows, init_cache
from dart_jax.models.cpu import only_rows, used_rows
from dart_jax.models.networks.pure import bind, dtype_of
from dart_jax.models.networks.target import Target

# Rows that are scored at a time: at a vocabulary of 150,000 their logits take 20 MB.
_SCORED_ROWS = 32


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
) -> tuple[Caches, TokenScores | None]:
    """Reads tokens [B, C] at the positions from `start` [B] on, given the tokens after each; for
    `filled` see `PromptRows`. If the config reports log-probabilities, also scores the tokens
    after."""
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
    scores = None
    if config.logits.logprobs is not None:
        scores = _score(config, target, out.hidden, following)
    kernel = config.execution.attention
    return Caches(keep_rows(cache, out.rows, start, kernel), draft_state), scores


def _score(
    config: DecodeConfig, target: Target, hidden: jax.Array, tokens: jax.Array
) -> TokenScores:
    """Scores the tokens [B, C] that follow rows with the target's output [B, C, D], as far as these
    are used, some at a time: the logits of all would take much memory."""
    count, size = tokens.size, min(_SCORED_ROWS, tokens.size)
    vocabulary, most = Vocabulary(config.execution.devices.shards), config.logits.logprobs or 0
    rows = jnp.pad(hidden.reshape(count, -1), ((0, -count % size), (0, 0)))
    following = jnp.pad(tokens.reshape(count), (0, -count % size))

    def part(n: jax.Array) -> TokenScores:
        some, own = (
            jax.lax.dynamic_slice_in_dim(x, n * size, size)[None] for x in (rows, following)
        )
        with only_rows(None):
            logits = target.logits(some)
        likelier = logits > vocabulary.at(logits, own)
        ranks = 1 + vocabulary.total(likelier.astype(jnp.int32))[..., 0]
        return log_probabilities(logits, own, most, vocabulary)._replace(ranks=ranks)

    def write(n: jax.Array, scores: TokenScores) -> TokenScores:
        return jax.tree.map(
            lambda all_, new: jax.lax.dynamic_update_slice_in_dim(all_, new[0], n * size, 0),
            scores,
            part(n),
        )

    used = used_rows()
    parts = -(-(used[0] if used.size else count) // size)
    empty = jax.tree.map(
        lambda x: jnp.zeros((len(following), *x.shape[2:]), x.dtype),
        jax.eval_shape(part, jnp.int32(0)),
    )
    with jax.named_scope("score"):
        scores = jax.lax.fori_loop(0, parts, write, empty)
    return jax.tree.map(lambda x: x[:count].reshape(*tokens.shape, *x.shape[1:]), scores)
