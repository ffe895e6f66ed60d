"""The engine's jitted programs: a chunk of a prompt is read, and a burst of steps of the running
requests.

Both work on pools of pages that all requests share. Everything else that a burst needs to know of
its requests is small and comes from the host each time, so any of them can take part in any row.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting import PromptRows
from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.paying import (
    BINS,
    NUMBERS,
    AnyArray,
    Lessons,
    Paying,
    doubted,
    first_nodes,
    nodes_that_pay,
    outcomes_of,
    probabilities_of,
)
from dart_jax.decoding.reading import Caches, ChunkShape, read_rows
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import (
    decode_step,
    exact_products,
    noise_of_draft,
    with_text_drafts,
)
from dart_jax.decoding.tree import TREE_ROWS
from dart_jax.engine.fitting import fit_in_program
from dart_jax.engine.pools import POOLS, Pools, drafter_state, written
from dart_jax.engine.request import MOST_LOGPROBS, SamplingMode
from dart_jax.engine.rows import NODES, SLOT, History, Rows, state_of
from dart_jax.models.cache import PagedCache, capacity_of
from dart_jax.models.cpu import clock, only_rows
from dart_jax.models.networks.pure import bind
from dart_jax.models.sharding.collectives import once, over_groups
from dart_jax.models.sharding.mesh import DATA
from dart_jax.models.sharding.program import ALL, DEVICE_ROWS, ROWS, program


@dataclasses.dataclass(frozen=True)
class BurstProgram:
    """The static part of a burst: what it is compiled for, besides the number of its rows.

    Attributes:
      config: the models, and trees of N nodes; without a drafter for plain decoding.
      mode: how it samples.
      steps: the most steps of a burst, K.
      follows: whether the drafter reads what plain decoding has written, at the end of a burst.
      masked: whether some texts must follow a grammar. K is 1 where `fits_in_programs` says no.
    """

    config: DecodeConfig
    mode: SamplingMode
    steps: int
    follows: bool = False
    masked: bool = False


def config_of(config: DecodeConfig, nodes: int, mode: SamplingMode) -> DecodeConfig:
    """Returns the config for trees of `nodes` nodes, 0 for plain decoding, and a mode."""
    logits = config.logits
    if mode != "full":
        logits = dataclasses.replace(logits, logprobs=None)
    elif logits.logprobs is None:
        logits = dataclasses.replace(logits, logprobs=MOST_LOGPROBS)
    return dataclasses.replace(config, nodes=nodes, logits=logits)


# Tokens that the drafter reads at a time where it follows plain decoding.
_FOLLOWED = 16


class BurstResult(NamedTuple, Generic[AnyArray]):
    """The part of a burst's result that goes to the host; S = K * P tokens at most.

    Attributes:
      tokens: int32 [n, S], the emitted ones.
      ranks: int32 [n, S], the places in their trees of the nodes that drafted them; 0 for the
        target's own.
      scores: of the tokens, [n, S, ...], in mode `full`.
      counts: int32 [n, 4]: tokens emitted, steps taken, trees verified, and their nodes.
      lessons: what became of the trees, if nodes must pay.
      times: uint32 [1, K, 2], when each step was verified, in microseconds, and how many nodes it
        had. None where all slots of a tree take time.
      active: bool [n], the rows that go on.
      trees: int32 [n, 4, N + 1], the next trees, or None for plain decoding.
      packed: int32 [n, width], the host buffer of the last step, with the candidates that the
        search built these trees from.
    """

    tokens: AnyArray
    ranks: AnyArray
    scores: TokenScores | None
    counts: AnyArray
    lessons: Lessons[AnyArray] | None
    times: AnyArray | None
    active: AnyArray
    trees: AnyArray | None
    packed: AnyArray


@program(
    inputs={"pools": POOLS, "tokens": ROWS, "start": ROWS, "pages": ROWS, "used": ALL},
    outputs=(POOLS, ROWS),
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
    used: jax.Array | None = None,
    *,
    shape: ChunkShape,
) -> tuple[Pools, TokenScores | None]:
    """Reads tokens of n prompts; returns also the scores, [n, shape.rows, ...], of the token after
    each row, if the config reports log-probabilities.

    Args:
      config: static; `DecodeConfig.reading` or `DecodeConfig.scoring`.
      params: see `DecodeParams`.
      pools: donated.
      tokens: int32 [n, shape.rows + 1]: the tokens, and the one after the last. What is written of
        rows beyond a prompt's end is overwritten later, or has no page.
      start: int32 [n], the first ones' positions.
      pages: int32 [n, m], the requests'.
      used: int32 scalar, how many rows are computed, of one prompt on a CPU; by default all.
      shape: static.
    """
    caches = Caches(PagedCache(pools.target, pages), drafter_state(pools.draft, pages))
    capacity = capacity_of(caches.target)
    with jax.named_scope("prefill"), only_rows(used):
        read, scores = read_rows(
            config,
            params,
            caches,
            tokens[:, :-1],
            tokens[:, 1:],
            start,
            min(shape.filled, capacity),
        )
    return written(pools, read.target, read.draft, pages), scores


@program(
    inputs={
        "pools": POOLS,
        "history": DEVICE_ROWS,
        "rows": ROWS,
        "trees": ROWS,
        "masks": ROWS,
        "search": ALL,
        "limit": ALL,
        "least": ALL,
        "fitter": ALL,
        "paying": ALL,
        "trust": ALL,
    },
    outputs=(POOLS, DEVICE_ROWS, ROWS),
    static=("static",),
    donated=("pools", "history"),
    config=lambda arguments: arguments["static"].config,
)
@exact_products
def burst(
    static: BurstProgram,
    params: DecodeParams,
    pools: Pools,
    history: History | None,
    rows: Rows,
    trees: jax.Array | None,
    search: TreeSearch | None,
    limit: jax.Array,
    least: jax.Array,
    masks: jax.Array | None = None,
    fitter: jax.Array | None = None,
    paying: Paying[jax.Array] | None = None,
    trust: jax.Array | None = None,
) -> tuple[Pools, History | None, BurstResult[jax.Array]]:
    """Takes steps of n requests until all have ended, or at a limit: each verifies a tree of every
    request that goes on, drafts, and searches the next trees.

    Args:
      static: static.
      params: see `DecodeParams`.
      pools: donated.
      history: donated; only in mode `full`.
      rows: the requests.
      trees: int32 [n, 4, N + 1], for the first step; a root without nodes where nothing is drafted
        yet. None for plain decoding.
      search: builds the next trees from the candidates, if the drafting method needs a search.
      limit: int32 scalar, the most steps; at most `static.steps`.
      least: int32 scalar, at least 1: end when fewer requests than that go on.
      masks: uint32 [n, N + 1, W], of the tokens that may follow each node of the first trees, if a
        text has a grammar.
      fitter: int32 scalar, says what may follow the nodes of later ones (see `fit_in_program`);
        None without masks.
      paying: says which nodes pay, by default all.
      trust: of what texts draft, see `Texts`; needed where they do.
    """
    config = static.config
    searched = None if search is None else search.in_program
    if searched is not None and config.execution.devices.shards > 1:
        searched = partial(once, searched)
    state, slots, most_nodes = _begin(static, pools, history, rows)
    state = begin = dataclasses.replace(state, noise=noise_of_draft(config, state), masks=masks)
    no_scores = state.scores

    def take_step(state: DecodeState, trees: jax.Array | None) -> Any:
        """Returns the state, the next trees, what they were searched among, what was emitted
        [n, P, ...], and how many tokens [n]."""
        state, path, packed = decode_step(config, params, state, trees)
        features = path.features if static.follows else None
        emitted = path.next_tokens, path.ranks, state.scores, features
        trees = state.trees if searched is None else searched(packed)
        if trees is not None and state.confidence is not None:
            trees = doubted(trees, state.confidence)
        if config.texts_draft:
            assert trust is not None
            trees = with_text_drafts(config, state, trees, trust)
        state = dataclasses.replace(state, trees=None, confidence=None, scores=no_scores)
        return state, trees, packed, emitted, path.count

    def keep_paying(trees: jax.Array, turn: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Returns the trees' first nodes that pay, and their probabilities [n, N + 1]; without
        `paying` all of them."""
        if paying is None:
            return trees, None
        # How far to trust the text alone is counted by the length of its matches.
        rates = None if config.drafter is None else paying.rates
        expected = probabilities_of(trees, rates, config.max_depth)
        number = paying.numbers[turn % NUMBERS]
        kept = nodes_that_pay(expected[:, 1:], paying.costs).astype(jnp.int32)
        kept = jnp.where(number < 0, kept, number)
        return first_nodes(trees, kept), first_nodes(expected[:, None], kept)[:, 0]

    def goes_on(carry: _Carry) -> jax.Array:
        state, turn = carry.state, carry.turn
        active = jnp.sum(state.active.astype(jnp.int32))
        if config.execution.devices.groups > 1:
            active = over_groups(active)  # all take the same number of steps
        return (active >= least) & (turn < limit)

    def body(carry: _Carry) -> _Carry:
        before, trees, packed, emitted, counts, lessons, times, turn = carry
        if masks is not None and fitter is not None and not one:
            if trees is not None and config.drafter is None:
                trees, _ = keep_paying(trees, turn)  # each that is fitted takes time
            drafted = jnp.zeros((n, TREE_ROWS, 1), jnp.int32) if trees is None else trees
            new = packed, drafted, emitted[0], counts[:, 0]
            fitted, allowed = jax.lax.cond(
                turn > 0,
                partial(fit_in_program, fitter, *new, masks.shape[2]),
                lambda: (drafted, before.masks),
            )
            trees = None if trees is None else fitted
            before = dataclasses.replace(before, masks=allowed)
        nodes, expected = jnp.zeros_like(counts[:, 0]), None
        if trees is not None:
            trees, expected = keep_paying(first_nodes(trees, most_nodes), turn)
            nodes = jnp.where(before.active, jnp.count_nonzero(trees[:, 2], axis=1), 0)
        state, next_trees, packed, new, count = take_step(before, trees)
        if lessons is not None and trees is not None and expected is not None:
            drafted = before.active & (most_nodes > 0)
            outcomes = outcomes_of(trees, new[1], state.active)
            lessons = lessons.plus(outcomes, expected, drafted)
        if times is not None:
            time = jnp.stack([clock(count), nodes[0].astype(jnp.uint32)])
            times = jax.lax.dynamic_update_slice(times, time[None, None], (0, turn, 0))
        emitted = jax.tree.map(lambda all_, new: _write(all_, new, counts[:, 0]), emitted, new)
        more = count, before.active, nodes > 0, nodes
        counts = counts + jnp.stack([x.astype(jnp.int32) for x in more], axis=1)
        return _Carry(state, next_trees, packed, emitted, counts, lessons, times, turn + 1)

    # Without a loop, what groups of devices share is joined where it is used, layer by layer.
    one = static.steps == 1
    *_, packed, emitted, _ = jax.eval_shape(take_step, state, trees)
    n, most = len(slots), static.steps * (config.max_depth + 1)
    lessons = times = None
    if paying is not None and trees is not None:
        expected = jnp.zeros((n, trees.shape[2]), jnp.float32)
        lessons = Lessons(jnp.zeros((n, BINS, 2), jnp.int32), expected)
    if n == 1 and config.reads_only_used:
        times = jnp.zeros((n, static.steps, 2), jnp.uint32)
    carry = _Carry(
        state,
        trees,
        jnp.zeros(packed.shape, jnp.int32),
        jax.tree.map(lambda x: jnp.zeros((n, most, *x.shape[2:]), x.dtype), emitted),
        jnp.zeros((n, 4), jnp.int32),
        lessons,
        times,
        jnp.int32(0),
    )
    carry = body(carry) if one else jax.lax.while_loop(goes_on, body, carry)
    state, trees, packed, emitted, counts, lessons, times, _ = carry
    new_tokens, ranks, scores, features = emitted
    draft_state = state.draft_state
    if static.follows:
        new = new_tokens, features, counts[:, 0]
        draft_state = _follow(config, params, draft_state, begin, *new)
    if history is not None:
        seen, counted = jax.tree.map(
            lambda old, new: old.at[slots].set(new, mode="drop"),
            (history.seen, history.counts),
            (state.seen, state.counts),
        )
        history = History(seen, counted, history.bias)
    result = BurstResult(
        new_tokens, ranks, scores, counts, lessons, times, state.active, trees, packed
    )
    pools = written(pools, state.target_cache, draft_state, jnp.asarray(rows.pages))
    return pools, history, result


class _Carry(NamedTuple):
    state: DecodeState
    trees: jax.Array | None
    packed: jax.Array
    emitted: Any  # tokens, ranks, scores and features, [n, S, ...]
    counts: jax.Array
    lessons: Lessons[jax.Array] | None
    times: jax.Array | None
    turn: jax.Array  # steps taken


def _follow(
    config: DecodeConfig,
    params: DecodeParams,
    draft_state: Any,
    begin: DecodeState,
    new_tokens: jax.Array,
    features: jax.Array,
    counts: jax.Array,
) -> Any:
    """Lets the drafter read what plain decoding has written since `begin`, some at a time:
    `counts` [n] of `new_tokens` [n, S] with their features [n, S, 3D]; returns its state. Rows
    beyond that are overwritten later, or have no page."""
    drafting = config.reading.drafting
    assert drafting is not None
    capacity = (
        draft_state.shape[1] if isinstance(draft_state, jax.Array) else capacity_of(draft_state)
    )
    count = min(_FOLLOWED, new_tokens.shape[1])
    target = bind(config.target, params["target"], config.execution.target)
    before = jnp.concatenate([begin.context[:, -1:], new_tokens[:, :-1]], axis=1)
    whole = [
        jnp.pad(x, ((0, 0), (0, -x.shape[1] % count), *((0, 0),) * (x.ndim - 2)))
        for x in (before, new_tokens, features)
    ]

    def read(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        first, draft_state = carry
        tokens, next_tokens, features = (
            jax.lax.dynamic_slice_in_dim(x, first, count, axis=1) for x in whole
        )
        start = begin.length + first
        rows = PromptRows(
            target,
            params,
            tokens,
            next_tokens,
            features,
            start[:, None] + jnp.arange(count, dtype=jnp.int32)[None],
            start,
            capacity,
            config.execution.drafter,
        )
        return first + count, drafting.read(draft_state, rows)

    with jax.named_scope("draft"):
        most = jnp.max(counts)
        if config.execution.devices.groups > 1:
            most = jax.lax.pmax(most, DATA)  # all read together
        carry = jnp.int32(0), draft_state
        _, draft_state = jax.lax.while_loop(lambda carry: carry[0] < most, read, carry)
    return draft_state


@jax.vmap
def _write(collected: jax.Array, path: jax.Array, at: jax.Array) -> jax.Array:
    """Writes each row's path [P, ...] into what was collected [S, ...], from place `at` on."""
    start = (at, *(0,) * (collected.ndim - 1))
    return jax.lax.dynamic_update_slice(collected, path, start)


def _begin(
    static: BurstProgram, pools: Pools, history: History | None, rows: Rows
) -> tuple[DecodeState, jax.Array, jax.Array]:
    """Returns the state before the first step, the rows' slots, and their trees' most nodes."""
    numbers, pages = jnp.asarray(rows.numbers), jnp.asarray(rows.pages)
    slots = numbers[:, SLOT]
    of_slots: dict[str, Any] = {}
    if history is not None:
        of_slots = {
            name: array.at[slots].get(mode="fill", fill_value=0)
            for name, array in history._asdict().items()
        }
    state = DecodeState(
        target_cache=PagedCache(pools.target, pages),
        draft_state=drafter_state(pools.draft, pages),
        scores=TokenScores() if static.config.logits.reported else None,
        **state_of(rows, static.mode),
        **of_slots,
    )
    return state, slots, numbers[:, NODES]
