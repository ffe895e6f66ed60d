"""The whole generation as one jitted program in which steps choose the sizes of their trees."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.adaptive.policy import Policy
from dart_jax.decoding.adaptive.step import (
    adaptive_step,
    plain_step,
    resume,
    start_adapting,
)
from dart_jax.decoding.loop.emission import Emitted, emitted_in, room_for, write
from dart_jax.decoding.pruner import search_in_jit
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState


class _Progress(NamedTuple):
    """The decode state, the newest host buffer, and everything emitted."""

    state: DecodeState
    packed: jax.Array
    output: Emitted
    emitted: jax.Array
    steps: jax.Array


@partial(jax.jit, static_argnames=("config", "native", "size"), donate_argnames=("state",))
def run_adaptive(
    config: DecodeConfig,
    native: bool,
    size: int,
    params: DecodeParams,
    state: DecodeState,
    packed: jax.Array,
    handle: jax.Array | None,
    policy: Policy,
) -> tuple[DecodeState, Emitted, jax.Array, jax.Array]:
    """As `fused.run`, for a config with sizes; continues a policy.

    Plain steps, the return to drafting and steps with drafts are loops of their own, of which one
    runs until another's turn comes: unlike branches, loops update the caches in place.
    """

    def active(at: _Progress) -> jax.Array:
        return jnp.any(at.state.active)

    def waiting(at: _Progress) -> jax.Array:
        return at.state.adaptive.policy.wait > 0

    def pending(at: _Progress) -> jax.Array:
        return at.state.adaptive.pending.count > 0

    def advance(
        at: _Progress, state: DecodeState, packed: jax.Array, new: Emitted, count: jax.Array
    ) -> _Progress:
        output = jax.tree.map(lambda old, path: write(old, path, at.emitted), at.output, new)
        steps = at.steps + at.state.active.astype(jnp.int32)
        return _Progress(state, packed, output, at.emitted + count, steps)

    def plain(at: _Progress) -> _Progress:
        state, path, scores = plain_step(config, params, at.state)
        drafted = jnp.zeros(path.next_tokens.shape, bool)
        return advance(at, state, at.packed, (path.next_tokens, drafted, scores), path.count)

    def back(at: _Progress) -> _Progress:
        state, packed = resume(config, params, at.state)
        return at._replace(state=state, packed=packed)

    def with_draft(at: _Progress) -> _Progress:
        found = None
        if handle is not None:
            found = search_in_jit(
                config.host_buffer, config.nodes, handle, at.packed, native=native
            )
        state, packed = adaptive_step(config, params, at.state, found)
        return advance(at, state, packed, emitted_in(config, state, packed), packed[:, 0])

    def body(at: _Progress) -> _Progress:
        at = jax.lax.while_loop(lambda at: active(at) & waiting(at), plain, at)
        at = jax.lax.while_loop(lambda at: active(at) & pending(at), back, at)
        drafting = lambda at: active(at) & ~waiting(at)  # noqa: E731
        return jax.lax.while_loop(drafting, with_draft, at)

    state = start_adapting(config, state, policy)
    first = jax.tree.map(partial(room_for, size), emitted_in(config, state, packed))
    steps = jnp.zeros((packed.shape[0],), jnp.int32)
    at = _Progress(state, packed, first, packed[:, 0], steps)
    at = jax.lax.while_loop(active, body, at)
    return at.state, at.output, at.emitted, at.steps
