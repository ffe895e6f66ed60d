"""The engine's jitted programs: a chunk of a prompt is read, and a burst of steps of the running
requests.

Both work on pools of pages that all requests share. Everything else that a burst needs to know of
its requests is small and comes from the host each time, so any of them can take part in any row.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.logits import LogitsConfig, TokenScores
from dart_jax.decoding.loop.emission import write
from dart_jax.decoding.prefill import Caches, ChunkShape, caches_without_rows, read_rows
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import (
    accept_and_compact,
    draft,
    draft_input,
    exact_products,
    noise_of_draft,
    pack,
    verify,
)
from dart_jax.models.cache import Cache, KVCache, PagedCache, capacity_of, parts
from dart_jax.models.config import TargetConfig
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.collectives import once
from dart_jax.models.sharding.mesh import MODEL
from dart_jax.models.sharding.program import ALL, OnDevices, program
from dart_jax.serving.config import Level
from dart_jax.serving.request import MOST_LOGPROBS
from dart_jax.serving.rows import Row, Rows, sampling_of, unpack


class Pools(NamedTuple):
    """The pages of all requests.

    Attributes:
      target: the target's keys and values, [P, K, page, h] per layer.
      draft: the drafter's; None if it has none, and for programs that do not run it.
    """

    target: KVCache
    draft: KVCache | None


# Their specs (see `dart_jax.models.sharding.program`): pages are split by heads.
_PAGES = P(None, MODEL)
_SPECS: Any = _PAGES, OnDevices(ALL, _PAGES)
POOLS = Pools(*_SPECS)


class History(NamedTuple):
    """What penalties and bias depend on, per slot.

    Attributes:
      seen: bool [slots, V], tokens of prompt and text.
      counts: int32 [slots, V], occurrences in the text.
      bias: float32 [slots, V].
    """

    seen: jax.Array
    counts: jax.Array
    bias: jax.Array


@dataclasses.dataclass(frozen=True)
class BurstProgram:
    """The static part of a burst: what it is compiled for, beside the number of its rows.

    Attributes:
      config: the models, and trees of N nodes; without a drafter for plain decoding.
      level: how it samples.
      steps: the most steps of a burst, K.
    """

    config: DecodeConfig
    level: Level
    steps: int

    @property
    def target(self) -> TargetConfig:
        """The target."""
        return self.config.target

    @property
    def drafter(self) -> Any:
        """The drafter."""
        return self.config.drafter

    @property
    def execution(self) -> Execution:
        """How the models are computed."""
        return self.config.execution


def config_of(config: DecodeConfig, nodes: int, level: Level) -> DecodeConfig:
    """The config for trees of `nodes` nodes, 0 for plain decoding, and a level."""
    logits = LogitsConfig(logprobs=MOST_LOGPROBS if level == "full" else None)
    config = dataclasses.replace(config if nodes else config.plain, logits=logits)
    return dataclasses.replace(config, nodes=nodes)


class BurstResult(NamedTuple):
    """The part of a burst's result that goes to the host; S = K * P tokens at most.

    Attributes:
      tokens: int32 [n, S], the emitted ones.
      ranks: int32 [n, S], the places in their trees of the nodes that drafted them; 0 for the
        target's own.
      scores: of the tokens, [n, S, ...]; None unless the level is `full`.
      counts: int32 [n, 4]: tokens emitted, steps taken, trees verified, and their nodes.
      active: bool [n], the rows that go on.
      trees: int32 [n, 3, N + 1], the next trees; None for plain decoding.
      packed: int32 [n, width], the host buffer of the last step, with the candidates that the
        search built these trees from.
    """

    tokens: jax.Array
    ranks: jax.Array
    scores: TokenScores | None
    counts: jax.Array
    active: jax.Array
    trees: jax.Array | None
    packed: jax.Array


@program(inputs={}, outputs=POOLS, static=("config", "pages", "page"))
def empty_pools(config: DecodeConfig, params: DecodeParams, *, pages: int, page: int) -> Pools:
    """Pools of `pages` pages of `page` rows."""
    caches = caches_without_rows(config.reading, params, pages, page)
    return _pools(caches.target, caches.draft)


def empty_history(slots: int, vocab_size: int) -> History:
    """The history of free slots."""
    shape = (slots, vocab_size)
    return History(
        jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)
    )


@partial(jax.jit, donate_argnames=("history",))
def begin_history(
    history: History, slot: jax.Array, seen: jax.Array, counts: jax.Array, bias: jax.Array
) -> History:
    """Sets a slot's history, each [V]."""
    new = seen, counts, bias
    return History(*(old.at[slot].set(x) for old, x in zip(history, new, strict=True)))


@program(
    inputs={"pools": POOLS, "tokens": ALL, "start": ALL, "pages": ALL},
    outputs=POOLS,
    static=("config", "shape"),
    donated=("pools",),
)
@exact_products
def read_chunk(
    config: DecodeConfig,
    params: DecodeParams,
    pools: Pools,
    tokens: jax.Array,
    start: jax.Array,
    pages: jax.Array,
    *,
    shape: ChunkShape,
) -> Pools:
    """Reads tokens of one prompt.

    Args:
      config: static; `DecodeConfig.reading`.
      params: see `DecodeParams`.
      pools: donated.
      tokens: int32 [1, shape.rows + 1]: the tokens, and the one after the last. What is written of
        rows beyond the prompt's end is overwritten later, or has no page.
      start: int32 [1], the first one's position.
      pages: int32 [1, m], the request's.
      shape: static.
    """
    caches = Caches(PagedCache(pools.target, pages), _paged(pools.draft, pages))
    capacity = capacity_of(caches.target)
    with jax.named_scope("prefill"):
        read = read_rows(
            config,
            params,
            caches,
            tokens[:, :-1],
            tokens[:, 1:],
            start,
            min(shape.filled, capacity),
            capacity,
        )
    return _pools(read.target, read.draft)


@program(
    inputs={
        "pools": POOLS,
        "history": ALL,
        "rows": ALL,
        "trees": ALL,
        "search": ALL,
        "limit": ALL,
        "until_one_ends": ALL,
    },
    outputs=(POOLS, ALL, ALL),
    static=("made_for",),
    donated=("pools", "history"),
    config="made_for",
)
@exact_products
def burst(
    made_for: BurstProgram,
    params: DecodeParams,
    pools: Pools,
    history: History | None,
    rows: Rows,
    trees: jax.Array | None,
    search: TreeSearch | None,
    limit: jax.Array,
    until_one_ends: jax.Array,
) -> tuple[Pools, History | None, BurstResult]:
    """Takes steps of n requests until all have ended, or at a limit: each verifies a tree of every
    request that goes on, drafts, and searches the next trees.

    Args:
      made_for: static.
      params: see `DecodeParams`.
      pools: donated.
      history: donated; None unless the level is `full`.
      rows: the requests.
      trees: int32 [n, 3, N + 1], for the first step; a root without nodes where nothing is drafted
        yet. None for plain decoding.
      search: builds the next trees from the candidates; None if the drafting method needs none.
      limit: int32 scalar, the most steps; at most `made_for.steps`.
      until_one_ends: bool scalar, end also when a request does.
    """
    config = made_for.config
    searched = None if search is None else search.in_program
    if searched is not None and config.execution.shards > 1:
        searched = partial(once, searched)
    state, row = _begin(made_for.level, pools, history, rows)
    state = dataclasses.replace(state, noise=noise_of_draft(config, state))
    began, no_scores = state.active, state.scores

    def take_step(state: DecodeState, trees: jax.Array | None) -> _Step:
        verified = verify(config, params, state, trees)
        state, path = accept_and_compact(config, state, trees, verified)
        emitted = _Emitted(path.next_tokens, path.ranks, state.scores)
        state, candidates = draft(config, state, draft_input(config, params, state, path))
        packed = pack(config.host_buffer, state, path, candidates)
        trees = state.trees if searched is None else searched(packed)
        state = dataclasses.replace(state, trees=None, scores=no_scores)
        return _Step(state, trees, packed, emitted, path.count)

    def goes_on(carry: _Carry) -> jax.Array:
        state, _, _, _, _, turn = carry
        ended = until_one_ends & jnp.any(began & ~state.active)
        return jnp.any(state.active) & (turn < limit) & ~ended

    def body(carry: _Carry) -> _Carry:
        before, trees, _, emitted, counts, turn = carry
        nodes = jnp.zeros_like(counts[:, 0])
        if trees is not None:
            trees = _cut(trees, row.nodes)
            nodes = jnp.where(before.active, jnp.count_nonzero(trees[:, 2], axis=1), 0)
        after = take_step(before, trees)
        emitted = jax.tree.map(
            lambda all_, new: write(all_, new, counts[:, 0]), emitted, after.emitted
        )
        new = after.count, before.active, nodes > 0, nodes
        counts = counts + jnp.stack([x.astype(jnp.int32) for x in new], axis=1)
        return after.state, after.trees, after.packed, emitted, counts, turn + 1

    step = jax.eval_shape(take_step, state, trees)
    n, most = row.length.shape[0], made_for.steps * (config.max_depth + 1)
    carry = (
        state,
        trees,
        jnp.zeros(step.packed.shape, jnp.int32),
        jax.tree.map(lambda x: jnp.zeros((n, most, *x.shape[2:]), x.dtype), step.emitted),
        jnp.zeros((n, 4), jnp.int32),
        jnp.int32(0),
    )
    state, trees, packed, emitted, counts, _ = jax.lax.while_loop(goes_on, body, carry)
    if history is not None:
        pairs = zip((history.seen, history.counts), (state.seen, state.counts), strict=True)
        written = (old.at[row.slot].set(new, mode="drop") for old, new in pairs)
        history = History(*written, history.bias)
    result = BurstResult(*emitted, counts, state.active, trees, packed)
    return _pools(state.target_cache, state.draft_state), history, result


class _Emitted(NamedTuple):
    tokens: jax.Array
    ranks: jax.Array
    scores: TokenScores | None


class _Step(NamedTuple):
    state: DecodeState
    trees: jax.Array | None
    packed: jax.Array
    emitted: _Emitted  # [n, P, ...]
    count: jax.Array


# State, trees, host buffer, all that was emitted, counts, and steps taken.
_Carry = tuple[DecodeState, jax.Array | None, jax.Array, _Emitted, jax.Array, jax.Array]


def _cut(trees: jax.Array, nodes: jax.Array) -> jax.Array:
    """Leaves out nodes beyond the first ones, int32 [n], which are a tree: nodes are sorted from
    the best on, and after their parents."""
    place = jnp.arange(trees.shape[2], dtype=jnp.int32)[None, None]
    return jnp.where(place <= nodes[:, None, None], trees, 0)


def _begin(
    level: Level, pools: Pools, history: History | None, rows: Rows
) -> tuple[DecodeState, Row]:
    """The state before the first step, and the rows' numbers."""
    row = unpack(rows.numbers)
    of_slots = {}
    if history is not None:
        of_slots = {
            name: array.at[row.slot].get(mode="fill", fill_value=0)
            for name, array in history._asdict().items()
        }
    state = DecodeState(
        target_cache=PagedCache(pools.target, row.pages),
        draft_state=_paged(pools.draft, row.pages),
        length=row.length,
        context=row.context,
        remaining=row.remaining,
        stop=row.stop,
        keys=row.keys,
        sampling=sampling_of(level, rows.values),
        scores=TokenScores() if level == "full" else None,
        **of_slots,
    )
    return state, row


def _pools(target: Cache, draft: Cache | None) -> Pools:
    """The pools of caches."""
    return Pools(parts(target)[0], None if draft is None else parts(draft)[0])


def _paged(pool: KVCache | None, pages: jax.Array) -> PagedCache | None:
    return None if pool is None else PagedCache(pool, pages)
