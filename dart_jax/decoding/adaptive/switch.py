"""Decodes a batch burst by burst, each with trees of the size that the policy has chosen.

A change of size changes the shapes of what is drafted, so the newest rows are drafted again: that
is one forward pass of the drafter. After plain decoding it first reads what was written meanwhile.
Prompts are read for trees of one size, whatever size follows, so that few programs read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.adaptive.policy import Burst, Decisions
from dart_jax.decoding.drafting import DraftInput, PromptRows
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import STATE, DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import draft, draws_of, exact_products, noise_of_draft
from dart_jax.models.cache import capacity_of
from dart_jax.models.pure import bind
from dart_jax.models.sharding.mesh import first_of
from dart_jax.models.sharding.program import DRAFT_ROWS, ROWS, program


class TreeSize(NamedTuple):
    """What decodes with trees of one size.

    Attributes:
      config: static; for trees whose size may change, `config.pause` is set.
      search: the tree search; None if the drafting method needs none.
    """

    config: DecodeConfig
    search: TreeSearch | None


class PausedRows(NamedTuple):
    """Rows that plain decoding has written, and the drafter has not read.

    Attributes:
      root: int32 [B], the token before them.
      tokens: int32 [B, K], the tokens drawn after each row; padded on the right.
      features: [B, K, 3D], the target's.
      count: int32 [B], how many rows each has; 0 for rows that were finished before.
    """

    root: jax.Array
    tokens: jax.Array
    features: jax.Array
    count: jax.Array


class Switch:
    """The sizes of one batch's trees, from burst to burst.

    Attributes:
      current: what the next steps run.
      left: steps left of the burst; None for all that follow.
    """

    def __init__(
        self,
        sizes: Mapping[int, TreeSize],
        params: DecodeParams,
        policy: Decisions,
        reading: int | None = None,
    ):
        """Begins a batch.

        Args:
          sizes: what decodes with trees of each size, of all that the policy may choose.
          params: see `DecodeParams`.
          policy: decides, and learns.
          reading: the size for which prompts are read; None for the largest.
        """
        self._sizes, self._params, self._policy = sizes, params, policy
        # The drafter's part of the state, and rows it has not read, during plain decoding.
        self._draft_state: Any = None
        self._paused: PausedRows | None = None
        # The first burst, if the prompt is read for another size.
        self._first: Burst | None = None
        first, reading = policy.begin(), reading or max(sizes)
        if first.size not in (0, reading):
            self._first, first = first, Burst(reading, 0)
        self._take(first)

    def next(self, state: DecodeState, packed: jax.Array) -> tuple[DecodeState, jax.Array]:
        """Begins the next burst.

        Args:
          state: after the last burst, or the prefill.
          packed: the host buffer.

        Returns:
          The state and the host buffer that the burst begins with; nothing is emitted anew.
        """
        before, drafting = self.current.config, self._size > 0
        burst, self._first = self._first or self._policy.next(), None
        if not drafting and not burst.size:
            # Generations at the same time share a policy. The rows of one pause are kept, no more.
            burst = Burst(0, None)
        self._take(burst)
        config = self.current.config
        if config == before:
            return state, packed
        state = _without_trees(state)
        if not self._size:
            self._draft_state = None if self._rest else state.draft_state
            empty = jnp.zeros((packed.shape[0], config.host_buffer.width), jnp.int32)
            features = state.features if config.pause else None
            return dataclasses.replace(state, draft_state=None, features=features), empty
        if not drafting:
            draft_state, paused = self._draft_state, self._paused
            assert paused is not None
            draft_state = read_paused(
                config.reading,
                self._params,
                draft_state,
                paused,
                state.length,
                capacity=_rows(state),
            )
            state = dataclasses.replace(state, draft_state=draft_state)
            self._draft_state = self._paused = None
        return redraft(config, self._params, state)

    def learn(self, ranks: np.ndarray, steps: np.ndarray, seconds: float | None) -> None:
        """Tells the policy what came of the steps just run.

        Args:
          ranks: int [n], ranks of all accepted nodes; zeros are ignored.
          steps: int [B], those that each row took part in.
          seconds: see `Decisions.learn`.
        """
        # The processes that decode together choose alike.
        seconds = first_of(self.current.config.execution.mesh, seconds)
        if most := int(steps.max(initial=0)):
            self._policy.learn(self._size, ranks, int(steps.sum()), most, seconds)

    def paused(
        self, root: jax.Array, tokens: np.ndarray, features: jax.Array, count: np.ndarray
    ) -> None:
        """Keeps the rows of a burst of plain decoding for the drafter; see `PausedRows`."""
        count = np.asarray(count, np.int32)
        self._paused = PausedRows(root, jnp.asarray(tokens), features, jnp.asarray(count))

    def _take(self, burst: Burst) -> None:
        self._size, self.left = burst
        self._rest = burst.size == 0 and burst.steps is None
        self.current = self._sizes[self._size]
        if self._rest:
            config = dataclasses.replace(self.current.config, pause=0)
            self.current = TreeSize(config, None)


def _without_trees(state: DecodeState) -> DecodeState:
    """The state without what depends on the size of its trees, so that one program drafts for
    another size, whatever the size before."""
    scores = jax.tree.map(lambda x: x[:, :1], state.scores)
    return dataclasses.replace(state, trees=None, noise=None, scores=scores)


def _rows(state: DecodeState) -> int:
    """Rows of the caches."""
    return capacity_of(state.target_cache)


@program(
    inputs={"draft_state": DRAFT_ROWS, "paused": ROWS, "length": ROWS},
    outputs=DRAFT_ROWS,
    static=("config", "capacity"),
    donated=("draft_state",),
)
@exact_products
def read_paused(
    config: DecodeConfig,
    params: DecodeParams,
    draft_state: Any,
    paused: PausedRows,
    length: jax.Array,
    *,
    capacity: int,
) -> Any:
    """Lets the drafter read what plain decoding has written.

    Args:
      config: static; `DecodeConfig.reading`.
      params: see `DecodeParams`.
      draft_state: donated; see `DecodeState`.
      paused: the rows.
      length: int32 [B], rows of the target's cache.
      capacity: rows of the caches; static.

    Returns:
      The new `draft_state`.
    """
    drafting = config.drafting
    assert drafting is not None
    start = length - paused.count
    place = jnp.arange(paused.tokens.shape[1], dtype=jnp.int32)[None]
    rows = PromptRows(
        bind(config.target, params["target"], config.execution),
        params,
        jnp.concatenate([paused.root[:, None], paused.tokens[:, :-1]], axis=1),
        paused.tokens,
        paused.features,
        start[:, None] + place,
        start,
        capacity,
        capacity,
    )
    with jax.named_scope("draft"):
        return drafting.read(draft_state, rows)


@program(inputs={"state": STATE}, outputs=(STATE, ROWS), donated=("state",))
@exact_products
def redraft(
    config: DecodeConfig, params: DecodeParams, state: DecodeState
) -> tuple[DecodeState, jax.Array]:
    """Drafts after the newest rows, which the drafter has read, for trees of another size.

    Args:
      config: static; of the new size.
      params: see `DecodeParams`.
      state: donated.

    Returns:
      The new state, and a host buffer in which nothing is emitted.
    """
    assert state.features is not None
    last = jnp.maximum(state.length - 1, 0)
    inputs = DraftInput(
        bind(config.target, params["target"], config.execution),
        params,
        state.context[:, -2:-1],
        state.context[:, -1:],
        state.features,
        last[:, None],
        last=jnp.zeros_like(last),
        start=last,
        sampling=state.sampling,
        seen=state.seen,
        noise=noise_of_draft(config, state),
    )
    path = config.max_depth + 1

    def empty(x: jax.Array) -> jax.Array:
        return jnp.zeros((x.shape[0], path, *x.shape[2:]), x.dtype)

    state = dataclasses.replace(state, scores=jax.tree.map(empty, state.scores))
    state, candidates = draft(config, state, inputs)
    none = jnp.zeros_like(last)
    tokens = jnp.zeros((last.shape[0], path), jnp.int32)
    packed = config.host_buffer.pack(
        state.context, none, tokens, state.active, tokens, *candidates, draws_of(state)
    )
    return state, packed
