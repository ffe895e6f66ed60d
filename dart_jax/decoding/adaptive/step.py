"""Steps of adaptive decoding: with a tree of a chosen size, of plain decoding, and from the latter
back to drafting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.adaptive.acceptance import expected, learn
from dart_jax.decoding.adaptive.policy import LONGEST_PAUSE, Policy, account, choose
from dart_jax.decoding.drafting import DraftInput, PromptRows
from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import (
    AcceptedPath,
    accept_and_compact,
    draft,
    draft_input,
    exact_products,
    no_candidates,
    noise_of_draft,
    pack,
    verify,
)
from dart_jax.models.pure import bind


class Pending(NamedTuple):
    """Rows of plain steps, which the drafter has not read yet; K is the longest pause.

    Attributes:
      tokens: int32 [B, K], the rows' own tokens.
      next_tokens: int32 [B, K], the token after each row.
      features: [B, K, 3D], the target's.
      start: int32 [B], number of rows before these.
      count: int32, how many there are.
    """

    tokens: jax.Array
    next_tokens: jax.Array
    features: jax.Array
    start: jax.Array
    count: jax.Array


class Adaptive(NamedTuple):
    """The state of adaptive decoding.

    Attributes:
      policy: what is known, and what has been decided.
      pending: rows that the drafter has not read yet.
    """

    policy: Policy
    pending: Pending


@partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def start_adapting(config: DecodeConfig, state: DecodeState, policy: Policy) -> DecodeState:
    """Adds the state of adaptive decoding to that of a prefill."""
    shape = (state.length.shape[0], LONGEST_PAUSE)
    width = len(config.target.feature_layers) * config.target.hidden_size
    ids = jnp.zeros(shape, jnp.int32)
    features = jnp.zeros((*shape, width), state.target_cache[0][0].dtype)
    pending = Pending(ids, ids, features, jnp.zeros_like(state.length), jnp.int32(0))
    return dataclasses.replace(state, adaptive=Adaptive(policy, pending))


@partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
@exact_products
def adaptive_step(
    config: DecodeConfig,
    params: DecodeParams,
    state: DecodeState,
    found: tuple[jax.Array, jax.Array] | None,
) -> tuple[DecodeState, jax.Array]:
    """Verifies the best nodes of each tree, as many as pay, then drafts.

    Args:
      config: static, with sizes.
      params: see `DecodeParams`.
      state: donated.
      found: the search's trees int32 [B, 3, N + 1] and scores float32 [B, N + 1]; None if the state
        has them.

    Returns:
      The new state and the host buffer, int32 [B, width].
    """
    trees, scores = found or (state.trees, state.tree_scores)
    assert trees is not None
    assert scores is not None
    adaptive: Adaptive = state.adaptive
    policy, active = adaptive.policy, state.active
    with jax.named_scope("choose"):
        probability = expected(policy.rates, trees, scores)
        size, tokens = choose(policy, config.sizes, probability, active)

    def verified(nodes: int, trees: jax.Array, state: DecodeState):
        tree = trees[:, :, : nodes + 1]
        return accept_and_compact(config, state, tree, verify(config, params, state, tree))

    state, path = _only(size, [partial(verified, nodes) for nodes in config.sizes], trees, state)
    with jax.named_scope("learn"):
        count = jnp.where(active, path.count, 0)
        rates = learn(policy.rates, trees, scores, path.next_tokens, count)
        rows = jnp.maximum(jnp.sum(active), 1).astype(jnp.float32)
        emitted = jnp.sum(count).astype(jnp.float32) / rows
        policy = account(policy._replace(rates=rates), size, tokens, emitted)
    state = dataclasses.replace(state, adaptive=adaptive._replace(policy=policy))
    state, candidates = draft(config, state, draft_input(config, params, state, path))
    return state, pack(config, state, path, candidates)


def _only(
    index: jax.Array,
    branches: list[Callable[[jax.Array, DecodeState], tuple[DecodeState, AcceptedPath]]],
    trees: jax.Array,
    state: DecodeState,
) -> tuple[DecodeState, AcceptedPath]:
    """Runs the branch of this index: `lax.switch`, which would copy the caches; loops, here of one
    turn or none, update them in place."""
    shapes = jax.eval_shape(branches[0], trees, state)[1]
    path = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def run(branch: Callable[..., Any], carry: Any) -> Any:
        # XLA would do what depends on the trees alone before the loop, whether it turns or not.
        index, trees_now = jax.lax.optimization_barrier((carry[0], trees))
        return (jnp.full_like(index, -1), *branch(trees_now, carry[1]))

    carry = (index, state, path)
    for number, branch in enumerate(branches):
        carry = jax.lax.while_loop(
            lambda carry, number=number: carry[0] == number, partial(run, branch), carry
        )
    return carry[1:]


@exact_products
def plain_step(
    config: DecodeConfig, params: DecodeParams, state: DecodeState
) -> tuple[DecodeState, AcceptedPath, TokenScores | None]:
    """A step of plain decoding, whose row the drafter will read later.

    Returns:
      The new state; the path, one row long; and what is reported about its token.
    """
    plain = config.plain
    bare = dataclasses.replace(state, noise=None)
    bare, path = accept_and_compact(plain, bare, None, verify(plain, params, bare, None))
    adaptive: Adaptive = state.adaptive
    pending, policy = adaptive.pending, adaptive.policy

    def put(rows: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(
            rows, new.astype(rows.dtype), pending.count, axis=1
        )

    pending = Pending(
        put(pending.tokens, path.tokens),
        put(pending.next_tokens, path.next_tokens),
        put(pending.features, path.features),
        jnp.where(pending.count == 0, path.start, pending.start),
        pending.count + 1,
    )
    adaptive = Adaptive(policy._replace(wait=policy.wait - 1), pending)
    scores = bare.scores
    state = dataclasses.replace(bare, noise=state.noise, scores=state.scores, adaptive=adaptive)
    return state, path, scores


@partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def single_plain_step(
    config: DecodeConfig, params: DecodeParams, state: DecodeState
) -> tuple[DecodeState, jax.Array]:
    """`plain_step`, for the host loop: returns the new state, with what is reported about the
    token, and the host buffer, without candidates."""
    state, path, scores = plain_step(config, params, state)

    def pad(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, 0), (0, config.max_depth), *((0, 0),) * (x.ndim - 2)))

    path = path._replace(next_tokens=pad(path.next_tokens))
    state = dataclasses.replace(state, scores=jax.tree.map(pad, scores))
    return state, pack(config, state, path, no_candidates(config, path.count.shape[0]))


@partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
@exact_products
def resume(
    config: DecodeConfig, params: DecodeParams, state: DecodeState
) -> tuple[DecodeState, jax.Array]:
    """Lets the drafter read the pending rows, of which there is at least one, and draft.

    Returns:
      The new state, and a host buffer in which nothing is emitted.
    """
    adaptive: Adaptive = state.adaptive
    # Inside a loop XLA would otherwise read the rows before it, whether it turns or not: only their
    # count changes.
    pending = jax.lax.optimization_barrier(adaptive.pending)
    target = bind(config.target, params["target"], config.execution)
    capacity = state.target_cache[0][0].shape[2]
    place = jnp.arange(pending.tokens.shape[1], dtype=jnp.int32)[None]
    rows = PromptRows(
        target,
        params,
        pending.tokens,
        pending.next_tokens,
        pending.features,
        pending.start[:, None] + place,
        pending.start,
        capacity,
        capacity,
    )
    drafting = config.drafting
    assert drafting is not None
    with jax.named_scope("draft"):
        draft_state = drafting.read(state.draft_state, rows)
    emptied = adaptive._replace(pending=pending._replace(count=jnp.zeros_like(pending.count)))
    state = dataclasses.replace(state, draft_state=draft_state, adaptive=emptied)

    def newest(rows: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(rows, pending.count - 1, 1, axis=1)

    last = jnp.maximum(state.length - 1, 0)
    inputs = DraftInput(
        target,
        params,
        newest(pending.tokens),
        state.context[:, -1:],
        newest(pending.features),
        last[:, None],
        last=jnp.zeros_like(last),
        start=last,
        sampling=state.sampling,
        seen=state.seen,
        noise=noise_of_draft(config, state),
    )
    state, candidates = draft(config, state, inputs)
    none = jnp.zeros_like(last)
    tokens = jnp.zeros((last.shape[0], config.host_buffer.path), jnp.int32)
    nothing = AcceptedPath(tokens, tokens, inputs.features, inputs.positions, none, none, last)
    return state, pack(config, state, nothing, candidates)
