"""The prefill: reads the prompts into the caches, draws the first tokens and makes the first draft.

A short prompt is one call of `prefill`. Of a long one, `read_chunk` first reads chunks of a fixed
size and `prefill` the last rows. So a few programs serve all lengths, and activations take the
memory of a chunk. Prompts of a batch may end in different chunks: `prefill` reads the last rows of
*each* prompt, and overwrites what a chunk has written there or beyond the prompt's end.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting import DraftInput, PromptRows
from dart_jax.decoding.host_buffer import CONTEXT
from dart_jax.decoding.logits import process, token_scores
from dart_jax.decoding.noise import noise_at, row_keys
from dart_jax.decoding.penalties import mark_seen, penalize_repetition
from dart_jax.decoding.prompts import Prompts
from dart_jax.decoding.sampling import SamplingValues, draw
from dart_jax.decoding.state import STATE, DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import (
    as_needed,
    draft,
    draws_of,
    emit,
    exact_products,
    noise_of_draft,
)
from dart_jax.models.cache import Cache, capacity_of, first_rows, keep_rows, wait_for
from dart_jax.models.draft_layer import take_rows
from dart_jax.models.pure import bind
from dart_jax.models.sharding.collectives import rows_before
from dart_jax.models.sharding.program import ALL, CACHE, DRAFT_ROWS, ROWS, program
from dart_jax.models.target import Target, TargetOutput


class Caches(NamedTuple):
    """What has been read of a batch of prompts.

    Attributes:
      target: the target's keys and values.
      draft: state of the drafting method (see `DecodeState`).
    """

    target: Cache
    draft: Any


class ChunkShape(NamedTuple):
    """What a chunk's program is compiled for.

    Attributes:
      rows: tokens of each prompt that are read.
      filled: rows of the caches in which the tokens before them are found.
    """

    rows: int
    filled: int


class Chunk(NamedTuple):
    """Tokens of the prompts that are read together.

    Attributes:
      start: position of the first one.
      shape: what the program is compiled for.
    """

    start: int
    shape: ChunkShape


def divide(config: DecodeConfig, prompts: Prompts) -> list[Chunk]:
    """Returns the chunks in which prompts are read; none if they are short enough for one program.

    The last one is for `prefill`, the others for `read_chunk`. If a quarter of a chunk is enough
    for the last one, that saves time.
    """
    size, longest = prompts.chunk, int(prompts.length.max())
    if longest <= size:
        return []
    whole = (longest - 1) // size
    quarter = max(size // 4, 1)
    last = quarter if longest - whole * size <= quarter else size
    capacity = config.capacity(prompts.max_length)

    def filled(start: int) -> int:
        if config.execution.attention not in ("dense", "native"):
            return capacity  # the kernel reads no more than it must
        # A chunk's attention reads all rows it is given. Few sizes limit the number of programs;
        # and as XLA may copy the first rows of all layers at once, they are at most half the cache.
        rows = size if start else 0
        while rows < start:
            rows *= 4
        return rows if 2 * rows <= capacity else capacity

    sizes = [*[size] * whole, last]
    return [Chunk(n * size, ChunkShape(rows, filled(n * size))) for n, rows in enumerate(sizes)]


# The specs of these, see `dart_jax.models.sharding.program`.
CACHES = Caches(CACHE, DRAFT_ROWS)  # pyright: ignore[reportArgumentType]


@program(inputs={}, outputs=CACHES, static=("config", "batch", "capacity"))
def empty_caches(
    config: DecodeConfig, params: DecodeParams, *, batch: int, capacity: int
) -> Caches:
    """Returns the caches of `batch` prompts of which nothing was read, with `capacity` rows."""
    return caches_without_rows(config, params, batch // config.execution.groups, capacity)


def caches_without_rows(
    config: DecodeConfig, params: DecodeParams, batch: int, capacity: int
) -> Caches:
    """The same within a program, for the rows of a group."""
    none, token = jnp.zeros((batch,), jnp.int32), jnp.zeros((batch, 1), jnp.int32)
    read = partial(read_rows, config, params, None, token, token, none, 0, capacity)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(read))


@program(
    inputs={"caches": CACHES, "tokens": ROWS, "start": ALL},
    outputs=CACHES,
    static=("config", "shape"),
    donated=("caches",),
)
@exact_products
def read_chunk(
    config: DecodeConfig,
    params: DecodeParams,
    caches: Caches,
    tokens: jax.Array,
    start: jax.Array,
    *,
    shape: ChunkShape,
) -> Caches:
    """Reads the same positions of all prompts.

    Args:
      config: static; `DecodeConfig.reading`.
      params: see `DecodeParams`.
      caches: donated; the prompts up to `start`.
      tokens: int32 [B, T], prompts padded on the right; T > start + shape.rows.
      start: int32 scalar, the first position to read, at most `shape.filled`.
      shape: static.
    """
    chex.assert_type([tokens, start], jnp.int32)
    own, following = (
        jax.lax.dynamic_slice_in_dim(tokens, at, shape.rows, axis=1) for at in (start, start + 1)
    )
    capacity = capacity_of(caches.target)
    starts = jnp.broadcast_to(start, tokens.shape[:1])
    with jax.named_scope("prefill"):
        return read_rows(config, params, caches, own, following, starts, shape.filled, capacity)


@program(
    inputs={
        "tokens": ROWS,
        "length": ROWS,
        "max_new_tokens": ROWS,
        "stop": ALL,
        "seed": ALL,
        "sampling": ALL,
        "caches": CACHES,
    },
    outputs=(STATE, ROWS),
    static=("config", "shape", "capacity"),
    donated=("caches",),
)
@exact_products
def prefill(
    config: DecodeConfig,
    params: DecodeParams,
    tokens: jax.Array,
    length: jax.Array,
    max_new_tokens: jax.Array,
    stop: jax.Array,
    seed: jax.Array,
    sampling: SamplingValues,
    caches: Caches | None = None,
    *,
    capacity: int,
    shape: ChunkShape | None = None,
) -> tuple[DecodeState, jax.Array]:
    """Reads the prompts, or their last rows, draws each row's first token and makes the first
    draft.

    Args:
      config: static; `DecodeConfig.prefill`.
      params: see `DecodeParams`.
      tokens: int32 [B, T], prompts padded on the right.
      length: int32 [B], their lengths, at least 1.
      max_new_tokens: int32 [B].
      stop: int32 [n], see `DecodeState`.
      seed: uint32 scalar.
      sampling: how the target samples.
      caches: donated; the prompts without their last `shape.rows` tokens, or more of them. None if
        nothing was read.
      capacity: cache rows, `config.capacity(...)`; static.
      shape: how many tokens of each prompt are read now, its last ones; static. None for whole
        prompts.

    Returns:
      The state and the host buffer, int32 [B, width].
    """
    b, t = tokens.shape
    chex.assert_type([tokens, length, max_new_tokens], jnp.int32)
    chex.assert_shape([length, max_new_tokens], (b,))
    target = bind(config.target, params["target"], config.execution)
    last = (length - 1)[:, None]
    start, own, filled = jnp.zeros_like(length), tokens, 0
    cache, draft_state = (None, None) if caches is None else caches
    if shape is not None:
        start, filled = jnp.maximum(length - shape.rows, 0), shape.filled
        index = start[:, None] + jnp.arange(shape.rows, dtype=jnp.int32)[None]
        own = jnp.take_along_axis(tokens, index, axis=1)
    newest = last - start[:, None]
    with jax.named_scope("prefill"):
        out = _run(config, target, own, start, first_rows(cache, filled))
        logits = target.logits(take_rows(out.hidden, newest))
    position = jnp.arange(t, dtype=jnp.int32)[None]
    known = jnp.where(position <= last, tokens, -1)
    seen = sequences = None
    vocabulary, logits = as_needed(config, logits)
    processed = logits
    if sampling.repetition_penalty is not None:
        seen = mark_seen(jnp.zeros((b, config.target.vocab_size), bool), known)
        own_seen = vocabulary.own(seen[:, None])
        processed = penalize_repetition(sampling.repetition_penalty, processed, own_seen)
    if config.logits.processors:
        sequences = jnp.pad(known, ((0, 0), (0, capacity - t)), constant_values=-1)
        processors = config.logits.processors
        processed = process(processors, processed, sequences[:, None], length[:, None])
    rows = jnp.arange(b, dtype=jnp.int32)
    if config.execution.mesh is not None:
        rows = rows + rows_before(b)
    keys = row_keys(seed, rows)
    noise = noise_at(sampling, keys, length, 1, config.target.vocab_size)
    first = draw(sampling, processed, noise, jnp.zeros_like(last), vocabulary)
    scores = token_scores(config.logits, sampling, logits, processed, first, vocabulary)

    # The drafter's row i joins the feature at i with the token at i + 1.
    following = jnp.concatenate([own[:, 1:], first], axis=1)
    following = jnp.where(_positions(start, own) == last, first, following)
    if config.drafting is not None:
        prompt = PromptRows(
            target,
            params,
            own,
            following,
            out.features,
            _positions(start, own),
            start,
            filled,
            capacity,
        )
        with jax.named_scope("draft"):
            draft_state = config.drafting.read(draft_state, prompt)

    index = last - jnp.arange(CONTEXT - 1, -1, -1, dtype=jnp.int32)[None]
    context = jnp.where(index < 0, -1, jnp.take_along_axis(tokens, jnp.maximum(index, 0), axis=1))
    state = DecodeState(
        target_cache=keep_rows(cache, out.rows, wait_for(first, start), capacity),
        draft_state=draft_state,
        length=length,
        context=context,
        remaining=max_new_tokens,
        stop=stop,
        keys=keys,
        sampling=sampling,
        seen=seen,
        tokens=sequences,
        scores=jax.tree.map(partial(_pad_path, config.max_depth), scores),
        features=take_rows(out.features, newest) if config.pause else None,
    )
    state, count = emit(state, first, jnp.ones_like(length), length)
    inputs = DraftInput(
        target,
        params,
        jnp.take_along_axis(own, newest, axis=1),
        first,
        take_rows(out.features, newest),
        last,
        last=jnp.zeros_like(length),
        start=length - 1,
        sampling=sampling,
        seen=state.seen,
        noise=noise_of_draft(config, state),
    )
    state, candidates = draft(config, state, inputs)
    first = _pad_path(config.max_depth, first)
    packed = config.host_buffer.pack(
        state.context,
        count,
        jnp.zeros_like(first),
        state.active,
        first,
        *candidates,
        draws_of(state),
    )
    return state, packed


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
    target = bind(config.target, params["target"], config.execution)
    cache, draft_state = (None, None) if caches is None else caches
    out = _run(config, target, tokens, start, first_rows(cache, filled))
    if config.drafting is not None:
        positions = _positions(start, tokens)
        rows = PromptRows(
            target, params, tokens, following, out.features, positions, start, filled, capacity
        )
        with jax.named_scope("draft"):
            draft_state = config.drafting.read(draft_state, rows)
    return Caches(keep_rows(cache, out.rows, start, capacity), draft_state)


def _run(
    config: DecodeConfig, target: Target, tokens: jax.Array, start: jax.Array, cache: Cache | None
) -> TargetOutput:
    """Runs the target over tokens [B, T] that follow the first `start` [B] ones."""
    causal = jnp.tril(jnp.ones((1, tokens.shape[1], tokens.shape[1]), bool))
    return target(tokens, _positions(start, tokens), causal, cache, start, config.feature_layers)


def _positions(start: jax.Array, tokens: jax.Array) -> jax.Array:
    """Positions [B, T] of tokens that follow the first `start` [B] ones."""
    return start[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]


def _pad_path(max_depth: int, first: jax.Array) -> jax.Array:
    """Pads an array [B, 1, ...] of the prefill to paths [B, P, ...], with zeros."""
    return jnp.pad(first, ((0, 0), (0, max_depth), *((0, 0),) * (first.ndim - 2)))
