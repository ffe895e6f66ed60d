"""The engine's jitted programs: a chunk of a prompt is read, and a step of the running requests.

Both work on pools of pages that all requests share. Everything else that a step needs to know about
its requests is small and comes from the host each time, so any of them can take part in any row.
"""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.logits import LogitsConfig, TokenScores
from dart_jax.decoding.prefill import Caches, ChunkShape, caches_without_rows, read_rows
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import (
    accept_and_compact,
    draft,
    draft_input,
    exact_products,
    pack,
    verify,
)
from dart_jax.models.cache import Cache, KVCache, PagedCache, capacity_of, parts
from dart_jax.models.config import TargetConfig
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import MODEL
from dart_jax.models.sharding.program import ALL, OnDevices, program
from dart_jax.serving.config import Level
from dart_jax.serving.request import MOST_LOGPROBS
from dart_jax.serving.rows import Rows, sampling_of, unpack


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
class StepProgram:
    """What a step is compiled for, beside the number of its rows and the search in it.

    Attributes:
      config: the models, with trees of any size.
      verified: nodes of the trees that it verifies; 0 for plain decoding.
      drafted: nodes of the trees that it drafts for; 0 if it does not run the drafter.
      level: how it samples.
    """

    config: DecodeConfig
    verified: int
    drafted: int
    level: Level

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

    @functools.cached_property
    def verifying(self) -> DecodeConfig:
        """The config with which trees are verified."""
        logits = LogitsConfig(logprobs=MOST_LOGPROBS if self.level == "full" else None)
        return dataclasses.replace(self.config, nodes=self.verified, logits=logits)

    @functools.cached_property
    def drafting(self) -> DecodeConfig:
        """The config with which trees are drafted."""
        return dataclasses.replace(self.config, nodes=self.drafted)

    @functools.cached_property
    def host_buffer(self) -> HostBuffer:
        """The layout of what it returns."""
        return dataclasses.replace(self.drafting.host_buffer, path=self.verifying.max_depth + 1)


class StepResult(NamedTuple):
    """What a step returns to the host.

    Attributes:
      packed: the host buffer, int32 [n, width].
      trees: int32 [n, 3, N + 1], the next trees if they are built on the device.
      scores: of the emitted tokens; None unless the level is `full`.
    """

    packed: jax.Array
    trees: jax.Array | None
    scores: TokenScores | None


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
    inputs={"pools": POOLS, "history": ALL, "rows": ALL, "trees": ALL, "search": ALL},
    outputs=(POOLS, ALL, ALL),
    static=("made_for",),
    donated=("pools", "history"),
    config="made_for",
)
@exact_products
def step(
    made_for: StepProgram,
    params: DecodeParams,
    pools: Pools,
    history: History | None,
    rows: Rows,
    trees: jax.Array | None,
    search: TreeSearch | None = None,
) -> tuple[Pools, History | None, StepResult]:
    """Verifies a tree of each of n requests, and drafts their next ones.

    Args:
      made_for: static.
      params: see `DecodeParams`.
      pools: donated.
      history: donated; None unless the level is `full`.
      rows: the requests.
      trees: int32 [n, 3, N + 1]; None if the program verifies only the roots.
      search: searches the next trees in the program; None if that is done between steps, or not.
    """
    state, slot = _begin(made_for.level, pools, history, rows)
    verified = verify(made_for.verifying, params, state, trees)
    state, path = accept_and_compact(made_for.verifying, state, trees, verified)
    drafting = made_for.drafting
    state, candidates = draft(drafting, state, draft_input(drafting, params, state, path))
    packed = pack(made_for.host_buffer, state, path, candidates)
    made = state.trees
    if search is not None:
        made = search.in_program(packed)
    if history is not None:
        new = (state.seen, state.counts)
        old = history.seen, history.counts
        seen, counts = (x.at[slot].set(y, mode="drop") for x, y in zip(old, new, strict=True))
        history = History(seen, counts, history.bias)
    result = StepResult(packed, made, state.scores)
    return _pools(state.target_cache, state.draft_state), history, result


def _begin(
    level: Level, pools: Pools, history: History | None, rows: Rows
) -> tuple[DecodeState, jax.Array]:
    """The state before a step, and the slots, int32 [n]."""
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
    return state, row.slot


def _pools(target: Cache, draft: Cache | None) -> Pools:
    """The pools of caches."""
    return Pools(parts(target)[0], None if draft is None else parts(draft)[0])


def _paged(pool: KVCache | None, pages: jax.Array) -> PagedCache | None:
    return None if pool is None else PagedCache(pool, pages)
