"""The decode step: verify the tree -> accept -> compact the caches -> draft -> top-k.

Pure functions over plain pytrees. `DecodeConfig` is static; the state is donated, so its caches are
updated in place. Plain decoding is the same step with a tree that is only a root and no drafter. A
DART drafter's candidates go to the host, whose search sends a tree back; an EAGLE-3 drafter leaves
the next tree in the state.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from dart_jax.accept import accept
from dart_jax.cache import KVCache, append, init_cache
from dart_jax.config import DrafterConfig, Eagle3Config, TargetConfig
from dart_jax.eagle3 import Eagle3Tree, draft_tree
from dart_jax.pruner import CONTEXT, Handover
from dart_jax.pure import bind
from dart_jax.sampling import SamplingValues, draw, penalize
from dart_jax.target import Target
from dart_jax.tree import DraftTree, ancestor_mask, root_only, unpack

# {"target": ..., "drafter": ..., "draft_ids": int32 [Vd]}; the last two only where one drafts.
DecodeParams = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """What a step is compiled for.

    Attributes:
      target: the target's shapes.
      drafter: the drafter's; None decodes plainly.
      nodes: tree nodes without the root, N.
      candidates: a DART drafter's most likely tokens handed to the search at each position, k.
      eagle: how an EAGLE-3 drafter grows its trees.
    """

    target: TargetConfig
    drafter: DrafterConfig | Eagle3Config | None = None
    nodes: int = 0
    candidates: int = 25
    eagle: Eagle3Tree = Eagle3Tree()

    @property
    def searches(self) -> bool:
        """Whether trees come from the host's search."""
        return isinstance(self.drafter, DrafterConfig)

    @functools.cached_property
    def max_depth(self) -> int:
        """Deepest level of a tree."""
        if self.drafter is None:
            return 0
        if isinstance(self.drafter, Eagle3Config):
            return min(self.eagle.levels, self.nodes)
        return min(self.drafter.num_positions, self.nodes)

    @functools.cached_property
    def handover(self) -> Handover:
        """The layout of what crosses to the host."""
        if not isinstance(self.drafter, DrafterConfig):
            return Handover(positions=0, candidates=0, path=self.max_depth + 1)
        k = min(self.candidates, self.drafter.draft_vocab_size)
        return Handover(self.drafter.num_positions, k, self.max_depth + 1)

    @property
    def prefill(self) -> DecodeConfig:
        """The same for every tree that is deep enough, where the prefill depends on no more."""
        return dataclasses.replace(self, nodes=self.max_depth) if self.searches else self

    def capacity(self, max_length: int) -> int:
        """Cache rows that sequences of up to `max_length` tokens need.

        A step writes a whole path behind the accepted rows; a multiple of 64 keeps shapes few.
        """
        return -(-(max_length + self.max_depth + 1) // 64) * 64


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "target_cache",
        "draft_cache",
        "length",
        "context",
        "remaining",
        "stop",
        "seed",
        "sampling",
        "seen",
        "trees",
    ],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """Everything that changes from step to step, and what a call chooses.

    Attributes:
      target_cache: keys and values of all known tokens but the last, the root.
      draft_cache: the drafter's, of the same tokens.
      length: int32 [B], rows in both caches; also the root's position.
      context: int32 [B, 4], the last tokens known, the root at the end; -1 where there are fewer.
      remaining: int32 [B], tokens still to be emitted; 0 for a finished row.
      stop: int32 [n], ids that end a sequence; -1 is none.
      seed: uint32 scalar.
      sampling: how the target draws.
      seen: bool [B, V], tokens known so far; None without a repetition penalty.
      trees: int32 [B, 3, N + 1], the next trees, where the drafter makes them; else None.
    """

    target_cache: KVCache
    draft_cache: KVCache
    length: jax.Array
    context: jax.Array
    remaining: jax.Array
    stop: jax.Array
    seed: jax.Array
    sampling: SamplingValues
    seen: jax.Array | None = None
    trees: jax.Array | None = None

    @property
    def active(self) -> jax.Array:
        """Bool [B]: rows that go on."""
        return self.remaining > 0


def _exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """On recent GPUs a float32 product would otherwise be rounded to 19 bits."""

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args, **options)

    return wrapped


@partial(jax.jit, static_argnames=("config", "capacity"))
@_exact
def prefill(
    config: DecodeConfig,
    params: DecodeParams,
    tokens: jax.Array,
    length: jax.Array,
    max_new_tokens: jax.Array,
    stop: jax.Array,
    seed: jax.Array,
    sampling: SamplingValues,
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
      stop: int32 [n], see `DecodeState`.
      seed: uint32 scalar.
      sampling: how the target draws.
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
    seen = None
    if sampling.repetition_penalty is not None:
        seen = jnp.zeros((b, config.target.vocab_size), bool)
        seen = _mark(seen, jnp.where(positions <= last, tokens, -1))
        logits = penalize(sampling.repetition_penalty, logits, seen[:, None])
    first = draw(sampling, logits, seed, length[:, None], jnp.zeros_like(last))

    index = last - jnp.arange(CONTEXT - 1, -1, -1, dtype=jnp.int32)[None]
    context = jnp.where(index < 0, -1, jnp.take_along_axis(tokens, jnp.maximum(index, 0), axis=1))
    state = DecodeState(
        target_cache=_pad(out.rows, capacity),
        draft_cache=(),
        length=length,
        context=context,
        remaining=max_new_tokens,
        stop=stop,
        seed=seed,
        sampling=sampling,
        seen=seen,
    )
    state, count = _emit(state, first, jnp.ones_like(length))
    # The drafter's row i joins the feature at i with the token at i + 1.
    following = jnp.concatenate([tokens[:, 1:], first], axis=1)
    following = jnp.where(positions == last, first, following)
    state, ids, draft = _draft(
        config, params, target, state, out.features, following, positions, length - 1, None
    )
    first = jnp.pad(first, ((0, 0), (0, config.max_depth)))
    none = jnp.zeros_like(count)
    packed = config.handover.pack(state.context, count, none, state.active, first, ids, draft)
    return state, packed


@partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
@_exact
def step(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: jax.Array | None = None
) -> tuple[DecodeState, jax.Array]:
    """One verification and the draft that follows it.

    Args:
      config: static.
      params: see `DecodeParams`.
      state: donated.
      trees: int32 [B, 3, N + 1] from the pruner; None where the state has them, and for plain
        decoding.

    Returns:
      The new state and the packed handover, int32 [B, width].
    """
    trees = state.trees if trees is None else trees
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
        if state.seen is not None and state.sampling.repetition_penalty is not None:
            known = _known_at_nodes(state.seen, tree, mask)
            logits = penalize(state.sampling.repetition_penalty, logits, known)
        drawn = draw(state.sampling, logits, state.seed, path_positions + 1, tree.depth)
        won = accept(tree, mask, drawn, depth)

    start = state.length
    state, count = _emit(state, won.tokens, won.count)
    drafted = jnp.minimum(count, won.count - 1)
    with jax.named_scope("compact"):
        cache = append(state.target_cache, out.rows, won.path, start)
        state = dataclasses.replace(state, target_cache=cache, length=start + count)
    features = jnp.take_along_axis(out.features, won.path[:, :, None], axis=1)
    last = jnp.maximum(count - 1, 0)
    state, ids, draft = _draft(
        config, params, target, state, features, won.tokens, path_positions, last, start
    )
    packed = config.handover.pack(
        state.context, count, drafted, state.active, won.tokens, ids, draft
    )
    return state, packed


def _emit(state: DecodeState, tokens: jax.Array, count: jax.Array) -> tuple[DecodeState, jax.Array]:
    """Takes the won tokens [B, P] as known; ends a row at a stop id or at its budget.

    Returns:
      The state with new `context`, `seen` and `remaining`, and how many tokens each row emits.
    """
    count = jnp.minimum(count, state.remaining)
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    stop = jnp.isin(tokens, state.stop) & (place < count[:, None])
    ended = jnp.any(stop, axis=1)
    count = jnp.where(ended, jnp.argmax(stop, axis=1).astype(jnp.int32) + 1, count)
    known = jnp.concatenate([state.context, tokens], axis=1)
    latest = count[:, None] + jnp.arange(CONTEXT, dtype=jnp.int32)[None]
    seen = state.seen
    if seen is not None:
        seen = _mark(seen, jnp.where(place < count[:, None], tokens, -1))
    state = dataclasses.replace(
        state,
        context=jnp.take_along_axis(known, latest, axis=1),
        remaining=jnp.where(ended, 0, state.remaining - count),
        seen=seen,
    )
    return state, count


def _draft(
    config: DecodeConfig,
    params: DecodeParams,
    target: Target,
    state: DecodeState,
    features: jax.Array,
    following: jax.Array,
    positions: jax.Array,
    last: jax.Array,
    start: jax.Array | None,
) -> tuple[DecodeState, jax.Array, jax.Array]:
    """Drafts behind the newest rows.

    Args:
      config: without a drafter nothing is done.
      params: see `DecodeParams`.
      target: gives the embeddings.
      state: with the newest token known.
      features: [B, P, 3D], of rows that the drafter has not seen.
      following: int32 [B, P], the tokens after them.
      positions: int32 [B, P].
      last: int32 [B], the last of the P rows that counts.
      start: int32 [B], rows in the drafter's cache; None before there is one.

    Returns:
      The state with the drafter's cache, and its trees if it makes them itself; the candidates for
      the host's search, ids and float32 logits [B, d, k].
    """
    if config.drafter is None:
        return state, *_no_candidates(last.shape[0])
    drafter = bind(config.drafter, params["drafter"])
    known = None if start is None else state.draft_cache
    with jax.named_scope("draft"):
        if isinstance(config.drafter, Eagle3Config):
            trees, rows = draft_tree(
                config.eagle,
                drafter,
                target.embed,
                params["draft_ids"],
                features,
                following,
                positions,
                last,
                config.nodes,
                known,
                start,
            )
            state = dataclasses.replace(state, trees=trees)
            ids, logits = _no_candidates(last.shape[0])
        else:
            embeds = target.embed(following)
            draft, rows = drafter(features, embeds, positions, last, known, start)
            logits, index = jax.lax.top_k(draft, config.handover.candidates)
            ids = jnp.take(params["draft_ids"], index)
    if start is None:
        cache = _pad(rows, state.target_cache[0][0].shape[2])
    else:
        every_row = jnp.arange(positions.shape[1], dtype=jnp.int32)[None]
        cache = append(state.draft_cache, rows, jnp.broadcast_to(every_row, positions.shape), start)
    return dataclasses.replace(state, draft_cache=cache), ids, logits


def _no_candidates(batch: int) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros((batch, 0, 0), jnp.int32), jnp.zeros((batch, 0, 0), jnp.float32)


def _mark(seen: jax.Array, tokens: jax.Array) -> jax.Array:
    """Marks tokens, int32 [..., n], in bool [..., V]; -1 is none."""
    if seen.ndim > 1:
        return jax.vmap(_mark)(seen, tokens)
    # An index beyond the end is dropped; -1 would be the last.
    return seen.at[jnp.where(tokens < 0, seen.shape[0], tokens)].set(True, mode="drop")


def _known_at_nodes(seen: jax.Array, tree: DraftTree, mask: jax.Array) -> jax.Array:
    """Tokens known at every node, its own and its ancestors' included: bool [B, N + 1, V]."""
    b, nodes = tree.tokens.shape
    paths = jnp.where(mask, tree.tokens[:, None], -1)
    return _mark(jnp.broadcast_to(seen[:, None], (b, nodes, seen.shape[1])), paths)


def _pad(rows: KVCache, capacity: int) -> KVCache:
    """New rows [B, K, T, h] as the beginning of a cache of `capacity` rows."""
    k, _ = rows[0]
    empty = init_cache(len(rows), k.shape[0], k.shape[1], capacity, k.shape[3], k.dtype)
    return jax.tree.map(lambda cache, new: cache.at[:, :, : new.shape[2]].set(new), empty, rows)
