"""The decode step taken apart: each stage a pure function of its own.

`together` runs them one after the other and gives what `dart_jax.step.step` gives, which the tests
compare. They know DART's drafting and draws without a repetition penalty.

Axis letters as in `dart_jax.layers`; T is the rows verified, N + 1, P the rows of a path.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.accept import accept
from dart_jax.cache import KVCache, append, extend
from dart_jax.config import DrafterConfig
from dart_jax.pure import bind
from dart_jax.sampling import draw

# The parts of a step that are its own; a copy of them would be another program.
from dart_jax.step import DecodeConfig, DecodeParams, DecodeState, _emit, _exact, step
from dart_jax.tree import ancestor_mask, unpack


class Verified(NamedTuple):
    """What the target leaves.

    Attributes:
      logits: float32 [B, T, V].
      features: [B, T, 3D].
      rows: keys and values of the T rows, layer by layer.
    """

    logits: jax.Array
    features: jax.Array
    rows: KVCache


class Accepted(NamedTuple):
    """What the walk leaves for the draft.

    Attributes:
      tokens: int32 [B, P], those won.
      count: int32 [B], how many of them are emitted.
      drafted: int32 [B], how many of these had been drafted.
      features: [B, P, 3D] of the path.
      positions: int32 [B, P].
      start: int32 [B], rows known before.
      state: without caches.
    """

    tokens: jax.Array
    count: jax.Array
    drafted: jax.Array
    features: jax.Array
    positions: jax.Array
    start: jax.Array
    state: DecodeState


def without_caches(state: DecodeState) -> DecodeState:
    """What changes, but for the two caches."""
    return dataclasses.replace(state, target_cache=(), memory=())


@_exact
def verify(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: Any, cache: KVCache
) -> Verified:
    """The target over the tree's rows."""
    target = bind(config.target, params["target"])
    tree = unpack(trees)
    mask = ancestor_mask(tree, config.max_depth)
    positions = state.length[:, None] + tree.depth
    out = target(tree.tokens, positions, mask, cache, state.length)
    return Verified(target.logits(out.hidden), out.features, out.rows)


@_exact
def accept_and_compact(
    config: DecodeConfig, state: DecodeState, trees: Any, verified: Verified, cache: KVCache
) -> tuple[KVCache, Accepted]:
    """The draws, the walk, and the path's rows behind the target's cache."""
    tree, depth, start = unpack(trees), config.max_depth, state.length
    mask = ancestor_mask(tree, depth)
    positions = start[:, None] + jnp.arange(depth + 1, dtype=jnp.int32)[None]
    drawn = draw(state.sampling, verified.logits, state.seed, positions + 1, tree.depth)
    won = accept(tree, mask, drawn, depth)
    state, count = _emit(state, won.tokens, won.count)
    drafted = jnp.minimum(count, won.count - 1)
    cache = append(cache, verified.rows, won.path, start)
    state = dataclasses.replace(state, length=start + count)
    features = jnp.take_along_axis(verified.features, won.path[:, :, None], axis=1)
    return cache, Accepted(won.tokens, count, drafted, features, positions, start, state)


@_exact
def draft(
    config: DecodeConfig, params: DecodeParams, won: Accepted, memory: KVCache
) -> tuple[jax.Array, KVCache]:
    """The drafter: float32 logits [B, d, Vd], and the rows for its cache."""
    assert isinstance(config.drafter, DrafterConfig)
    embeds = bind(config.target, params["target"]).embed(won.tokens)
    drafter, last = bind(config.drafter, params["drafter"]), jnp.maximum(won.count - 1, 0)
    return drafter(won.features, embeds, won.positions, last, memory, won.start)


def topk(
    config: DecodeConfig, params: DecodeParams, logits: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The candidates of every position, [B, d, k]: int32 ids, float32 logits."""
    best, index = jax.lax.top_k(logits, config.handover.candidates)
    return jnp.take(params["draft_ids"], index), best


def pack(
    config: DecodeConfig,
    won: Accepted,
    rows: KVCache,
    candidates: tuple[jax.Array, jax.Array],
    memory: KVCache,
) -> tuple[KVCache, jax.Array]:
    """The drafter's new rows behind its cache, and what goes to the host, int32 [B, width]."""
    memory = extend(memory, rows, won.start, memory[0][0].shape[2])
    state = won.state
    packed = config.handover.pack(
        state.context, won.count, won.drafted, state.active, won.tokens, *candidates
    )
    return memory, packed


@partial(jax.jit, static_argnames=("config",))
def together(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: jax.Array
) -> tuple[DecodeState, jax.Array]:
    """All stages in turn: what `dart_jax.step.step` gives."""
    small = without_caches(state)
    verified = verify(config, params, small, trees, state.target_cache)
    cache, won = accept_and_compact(config, small, trees, verified, state.target_cache)
    logits, rows = draft(config, params, won, state.memory)
    candidates = topk(config, params, logits)
    memory, packed = pack(config, won, rows, candidates, state.memory)
    return dataclasses.replace(won.state, target_cache=cache, memory=memory), packed


# The same as `eval.latency_clock.Stage` wants them: fixed, inputs, moved -> moved, outputs. What
# the loop must see first, since all depends on it, is the first output.


def verify_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """fixed: parameters, target cache; inputs: state, trees."""
    params, cache = fixed
    state, trees = inputs
    return moved, verify(config, params, state, trees, cache)


def accept_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """inputs: state, trees, `Verified`; moved: target cache."""
    del fixed
    state, trees, verified = inputs
    return accept_and_compact(config, state, trees, verified, moved)


def draft_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """fixed: parameters, drafter cache; inputs: `Accepted`."""
    params, memory = fixed
    return moved, draft(config, params, inputs, memory)


def topk_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """fixed: parameters; inputs: logits."""
    return moved, topk(config, fixed, inputs)


def pack_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """inputs: `Accepted`, rows, candidates; moved: drafter cache."""
    del fixed
    won, rows, candidates = inputs
    return pack(config, won, rows, candidates, moved)


def step_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """The step itself; fixed: parameters; inputs: state, trees; moved: both caches."""
    small, trees = inputs
    cache, memory = moved
    state = dataclasses.replace(small, target_cache=cache, memory=memory)
    state, packed = step(config, fixed, state, trees)
    return (state.target_cache, state.memory), packed
