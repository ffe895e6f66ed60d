"""The decode step: verify the tree -> accept -> compact the caches -> draft -> top-k.

Pure functions over plain pytrees. `DecodeConfig` is static; the state is donated, so its caches are
updated in place. Plain decoding is the same step with a tree that is only a root and no drafter.
"""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from dart_jax.accept import accept
from dart_jax.cache import KVCache, append, init_cache
from dart_jax.config import DrafterConfig, TargetConfig
from dart_jax.pruner import CONTEXT, Handover
from dart_jax.pure import bind
from dart_jax.sampling import Sampling, draw
from dart_jax.tree import ancestor_mask, root_only, unpack

# {"target": ..., "drafter": ..., "draft_ids": int32 [Vd]}; the last two only where one drafts.
DecodeParams = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """What a step is compiled for.

    Attributes:
      target: the target's shapes.
      drafter: the drafter's; None decodes plainly.
      nodes: tree nodes without the root, N.
      sampling: how the target draws.
      eos: ids that end a sequence.
      candidates: the drafter's most likely tokens handed to the search at each position, k.
    """

    target: TargetConfig
    drafter: DrafterConfig | None = None
    nodes: int = 0
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    eos: tuple[int, ...] = ()
    candidates: int = 25

    @functools.cached_property
    def max_depth(self) -> int:
        """Deepest level of a tree."""
        return min(self.drafter.num_positions, self.nodes) if self.drafter else 0

    @functools.cached_property
    def handover(self) -> Handover:
        """The layout of what crosses to the host."""
        if self.drafter is None:
            return Handover(positions=0, candidates=0, path=1)
        k = min(self.candidates, self.drafter.draft_vocab_size)
        return Handover(self.drafter.num_positions, k, self.max_depth + 1)

    def capacity(self, max_length: int) -> int:
        """Cache rows that sequences of up to `max_length` tokens need.

        A step writes a whole path behind the accepted rows; a multiple of 64 keeps shapes few.
        """
        return -(-(max_length + self.max_depth + 1) // 64) * 64


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["target_cache", "draft_cache", "length", "context", "remaining", "seed"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """Everything that changes from step to step.

    Attributes:
      target_cache: keys and values of all known tokens but the last, the root.
      draft_cache: the drafter's, of the same tokens.
      length: int32 [B], rows in both caches; also the root's position.
      context: int32 [B, 4], the last tokens known, the root at the end; -1 where there are fewer.
      remaining: int32 [B], tokens still to be emitted; 0 for a finished row.
      seed: uint32 scalar.
    """

    target_cache: KVCache
    draft_cache: KVCache
    length: jax.Array
    context: jax.Array
    remaining: jax.Array
    seed: jax.Array

    @property
    def active(self) -> jax.Array:
        """Bool [B]: rows that go on."""
        return self.remaining > 0


@partial(jax.jit, static_argnames=("config", "capacity"))
def prefill(
    config: DecodeConfig,
    params: DecodeParams,
    tokens: jax.Array,
    length: jax.Array,
    max_new_tokens: jax.Array,
    seed: jax.Array,
    *,
    capacity: int,
) -> tuple[DecodeState, jax.Array]:
    """Reads the prompts, draws each row's first token and drafts from there.

    Args:
      config: static.
      params: see `DecodeParams`.
      tokens: int32 [B, T], prompts padded on the right.
      length: int32 [B], their lengths, at least 1.
      max_new_tokens: int32 [B].
      seed: uint32 scalar.
      capacity: cache rows, `config.capacity(...)`; static.

    Returns:
      The state and the packed handover, int32 [B, width].
    """
    b, t = tokens.shape
    chex.assert_type([tokens, length, max_new_tokens], jnp.int32)
    chex.assert_shape([length, max_new_tokens], (b,))
    target = bind(config.target, params["target"])
    positions = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None], (b, t))
    with jax.named_scope("prefill"):
        out = target(tokens, positions, jnp.tril(jnp.ones((1, t, t), bool)))
        last = (length - 1)[:, None]
        hidden = jnp.take_along_axis(out.hidden, last[:, :, None], axis=1)
        logits = target.logits(hidden)
    first = draw(config.sampling, logits, seed, length[:, None], jnp.zeros_like(last))

    index = last - jnp.arange(CONTEXT - 1, -1, -1, dtype=jnp.int32)[None]
    context = jnp.where(index < 0, -1, jnp.take_along_axis(tokens, jnp.maximum(index, 0), axis=1))
    state = DecodeState(
        target_cache=_pad(out.rows, capacity),
        draft_cache=(),
        length=length,
        context=context,
        remaining=max_new_tokens,
        seed=seed,
    )
    count = jnp.ones_like(length)
    state, count = _emit(config, state, first, count)
    if config.drafter is None:
        return state, _plain_handover(config, state, first, count)
    # The drafter's row i joins the feature at i with the token at i + 1.
    following = jnp.concatenate([tokens[:, 1:], first], axis=1)
    following = jnp.where(positions == last, first, following)
    drafter = bind(config.drafter, params["drafter"])
    with jax.named_scope("draft"):
        draft, rows = drafter(out.features, target.embed(following), positions, last)
    state = dataclasses.replace(state, draft_cache=_pad(rows, capacity))
    first = jnp.pad(first, ((0, 0), (0, config.max_depth)))
    return state, _handover(config, params, state, first, count, draft)


@partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def step(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: jax.Array | None = None
) -> tuple[DecodeState, jax.Array]:
    """One verification and the draft that follows it.

    Args:
      config: static.
      params: see `DecodeParams`.
      state: donated.
      trees: int32 [B, 3, N + 1] from the pruner; None for plain decoding.

    Returns:
      The new state and the packed handover, int32 [B, width].
    """
    if trees is not None:
        chex.assert_shape(trees, (state.length.shape[0], 3, config.nodes + 1))
        chex.assert_type(trees, jnp.int32)
    target = bind(config.target, params["target"])
    tree = root_only(state.context[:, -1]) if trees is None else unpack(trees)
    depth = config.max_depth
    with jax.named_scope("verify"):
        mask = ancestor_mask(tree, depth)
        positions = state.length[:, None] + tree.depth
        out = target(tree.tokens, positions, mask, state.target_cache, state.length)
        logits = target.logits(out.hidden)
    path_positions = state.length[:, None] + jnp.arange(depth + 1, dtype=jnp.int32)[None]
    with jax.named_scope("accept"):
        drawn = draw(config.sampling, logits, state.seed, path_positions + 1, tree.depth)
        won = accept(tree, mask, drawn, depth)

    start = state.length
    state, count = _emit(config, state, won.tokens, won.count)
    with jax.named_scope("compact"):
        cache = append(state.target_cache, out.rows, won.path, start)
        state = dataclasses.replace(state, target_cache=cache, length=start + count)
    if config.drafter is None:
        return state, _plain_handover(config, state, won.tokens, count)
    drafter = bind(config.drafter, params["drafter"])
    with jax.named_scope("draft"):
        draft, rows = drafter(
            jnp.take_along_axis(out.features, won.path[:, :, None], axis=1),
            target.embed(won.tokens),
            path_positions,
            jnp.maximum(count - 1, 0)[:, None],
            state.draft_cache,
            start,
        )
        every_row = jnp.broadcast_to(jnp.arange(depth + 1, dtype=jnp.int32)[None], won.tokens.shape)
        cache = append(state.draft_cache, rows, every_row, start)
        state = dataclasses.replace(state, draft_cache=cache)
    return state, _handover(config, params, state, won.tokens, count, draft)


def _emit(
    config: DecodeConfig, state: DecodeState, tokens: jax.Array, count: jax.Array
) -> tuple[DecodeState, jax.Array]:
    """Takes the won tokens [B, P] into the context; stops a row at EOS or at its budget.

    Returns:
      The state with new `context` and `remaining`, and how many tokens each row emits.
    """
    count = jnp.minimum(count, state.remaining)
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    eos = jnp.isin(tokens, jnp.asarray(config.eos, jnp.int32)) & (place < count[:, None])
    ended = jnp.any(eos, axis=1)
    count = jnp.where(ended, jnp.argmax(eos, axis=1).astype(jnp.int32) + 1, count)
    known = jnp.concatenate([state.context, tokens], axis=1)
    latest = count[:, None] + jnp.arange(CONTEXT, dtype=jnp.int32)[None]
    state = dataclasses.replace(
        state,
        context=jnp.take_along_axis(known, latest, axis=1),
        remaining=jnp.where(ended, 0, state.remaining - count),
    )
    return state, count


def _handover(
    config: DecodeConfig,
    params: DecodeParams,
    state: DecodeState,
    tokens: jax.Array,
    count: jax.Array,
    draft: jax.Array,
) -> jax.Array:
    """Packs the step's tokens and the top k of the draft logits [B, 1, d, Vd] for the host."""
    with jax.named_scope("top_k"):
        logits, index = jax.lax.top_k(draft[:, 0], config.handover.candidates)
        ids = jnp.take(params["draft_ids"], index)
    return config.handover.pack(state.context, count, state.active, tokens, ids, logits)


def _plain_handover(
    config: DecodeConfig, state: DecodeState, tokens: jax.Array, count: jax.Array
) -> jax.Array:
    none = jnp.zeros((tokens.shape[0], 0, 0), jnp.int32)
    return config.handover.pack(
        state.context, count, state.active, tokens, none, none.astype(jnp.float32)
    )


def _pad(rows: KVCache, capacity: int) -> KVCache:
    """New rows [B, K, T, h] as the beginning of a cache of `capacity` rows."""
    k, _ = rows[0]
    empty = init_cache(len(rows), k.shape[0], k.shape[1], capacity, k.shape[3], k.dtype)
    return jax.tree.map(lambda cache, new: cache.at[:, :, : new.shape[2]].set(new), empty, rows)
