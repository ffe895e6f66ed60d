"""The device's side of the engine: models, pools and programs, called with sequences."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.drafting import PromptLookupConfig
from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.prefill import ChunkShape, empty_caches
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.errors import UserError
from dart_jax.memory import parse_memory
from dart_jax.model import DartModel
from dart_jax.serving.config import Level, ServingConfig
from dart_jax.serving.programs import (
    History,
    Pools,
    StepProgram,
    begin_history,
    empty_history,
    empty_pools,
    read_chunk,
    step,
)
from dart_jax.serving.request import Draft, Logprobs
from dart_jax.serving.rows import AT_CONTEXT, LENGTH, PAGES, REMAINING, RowTable
from dart_jax.serving.scheduling.sequence import Sequence
from dart_jax.serving.shapes import Shapes

# Memory of the pools, at most, unless it is set.
_MOST_MEMORY = 8 * 10**9


class Emitted(NamedTuple):
    """What a step gave one sequence.

    Attributes:
      tokens: int32 [n], at least one.
      ranks: int32 [n], which nodes drafted them; 0 for the target's own.
      ended: whether no more tokens follow.
      drafted: nodes of the tree that was verified, the root not counted.
      logprobs: of the tokens, if they were asked for.
      draft: what was verified, if that was asked for and anything was drafted.
    """

    tokens: np.ndarray
    ranks: np.ndarray
    ended: bool
    drafted: int
    logprobs: Logprobs | None
    draft: Draft | None


class _Drafts(NamedTuple):
    """What the last step drafted, by row.

    Attributes:
      host_buffer: the layout of `packed`.
      packed: int32 [n, width], with candidates for the search.
      trees: int32 [n, 3, N + 1], if they were built on the device.
    """

    host_buffer: HostBuffer
    packed: np.ndarray
    trees: np.ndarray | None


class Batch:
    """The models, and the keys and values of all requests.

    Attributes:
      shapes: what programs are compiled for.
      page_count: pages of the pools.
      vocab_size: V.
      compiling: whether a program runs for the first time, and is compiled before. Other threads
        may read it.
    """

    def __init__(self, model: DartModel, config: ServingConfig, share: int = 1):
        """Allocates the pools; `share`: among how many such objects the memory is divided.

        Raises:
          UserError: the memory is too small for one request, or the drafting method cannot be
            served.
        """
        if isinstance(model.drafter, PromptLookupConfig):
            raise UserError("prompt lookup cannot be served; choose another drafting method")
        if model.execution.groups > 1:
            raise UserError(
                "a server has no groups of devices: leave data out of --mesh, and start a replica "
                "for each group"
            )
        self.shapes = Shapes.of(model, config)
        decoder = model.decoder(
            nodes=self.shapes.most_nodes,
            max_length=self.shapes.max_length,
            search=self.shapes.search,
        )
        self.vocab_size = model.target.vocab_size
        self.compiling = False
        self._compiled: set[Hashable] = set()
        self._config = decoder.config
        self._params = model.params
        self._search = decoder.search
        self._programs: dict[tuple[int, int, Level], StepProgram] = {}
        self._searches: dict[tuple[HostBuffer, int], TreeSearch] = {}
        self.page_count = self._count_pages(config, share)
        self._pools: Pools = empty_pools(
            self._config, self._params, pages=self.page_count, page=config.page
        )
        self._history: History = empty_history(config.slots, model.target.vocab_size)
        self._table = RowTable(config.slots, self.shapes.pages_each)
        self._drafts: _Drafts | None = None

    def _count_pages(self, config: ServingConfig, share: int) -> int:
        """How many pages the memory holds."""
        caches = jax.eval_shape(
            lambda: empty_caches(self._config.reading, self._params, batch=1, capacity=config.page)
        )
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(caches))
        wanted = config.slots * self.shapes.pages_each
        if config.kv_memory is None:
            return max(min(wanted, _MOST_MEMORY // share // size), self.shapes.pages_each)
        count = parse_memory(config.kv_memory) // share // size
        if count < self.shapes.pages_each:
            least = share * self.shapes.pages_each * size / 1e6
            raise UserError(
                f"--kv-memory {config.kv_memory} is too little for one request of "
                f"{self.shapes.max_length} tokens, which takes {least:,.0f} MB; raise it or lower "
                "--max-length"
            )
        return count

    def begin(self, sequence: Sequence) -> None:
        """Prepares the slot of a sequence that will be read."""
        slot = sequence.slot
        assert slot is not None
        self._table.begin(slot, sequence.request, self.vocab_size)
        if sequence.level == "full":
            self._begin_history(slot, sequence)

    def _begin_history(self, slot: int, sequence: Sequence) -> None:
        vocab = self.vocab_size
        seen, bias = np.zeros(vocab, bool), np.zeros(vocab, np.float32)
        seen[sequence.tokens] = True
        for token, value in sequence.request.logit_bias.items():
            bias[token] = value
        counts = np.bincount(sequence.text, minlength=vocab).astype(np.int32)
        self._history = begin_history(self._history, jnp.int32(slot), seen, counts, bias)

    def read(self, sequence: Sequence) -> int:
        """Reads the next tokens of a sequence; returns how many places that took."""
        rows = self.shapes.chunk_for(sequence.unread)
        start = sequence.read
        tokens = sequence.tokens[start : start + rows + 1]
        self.read_tokens(tokens, start, sequence.pages, rows, drafts=sequence.drafts)
        sequence.read = min(start + rows, sequence.count - 1)
        return rows

    def read_tokens(
        self, tokens: np.ndarray, start: int, pages: SequenceOf[int], rows: int, *, drafts: bool
    ) -> None:
        """Reads tokens, int32 [n], at the positions from `start` on, and the one after them, in a
        program for so many rows; `drafts`: whether the drafter reads them, too."""
        padded = np.zeros((1, rows + 1), np.int32)
        padded[0, : len(tokens)] = tokens
        table = np.full((1, self.shapes.pages_each), -1, np.int32)
        table[0, : len(pages)] = pages
        shape = ChunkShape(rows, self.shapes.filled(start))
        with self._compiles(drafts, shape):
            pools = read_chunk(
                (self._config if drafts else self._config.plain).reading,
                self._params,
                self._pools_for(drafts),
                padded,
                np.array([start], np.int32),
                table,
                shape=shape,
            )
        self._keep(pools)

    @contextlib.contextmanager
    def _compiles(self, *program: Hashable) -> Iterator[None]:
        """Around a call of a program: tells others if it is the first one."""
        self.compiling = program not in self._compiled
        try:
            yield
        finally:
            self.compiling = False
            self._compiled.add(program)

    def _pools_for(self, drafts: bool) -> Pools:
        """What a program needs of the pools."""
        return self._pools if drafts else self._pools._replace(draft=None)

    def _keep(self, pools: Pools) -> None:
        """Keeps what a program has written."""
        self._pools = (
            pools if pools.draft is not None else self._pools._replace(target=pools.target)
        )

    def forget_programs(self) -> None:
        """What was compiled is gone."""
        self._compiled.clear()

    def program(self, verified: int, drafted: int, level: Level) -> StepProgram:
        """A step's program; see `StepProgram`."""
        kind = verified, drafted, level
        if kind not in self._programs:
            config = self._config if drafted else self._config.plain
            self._programs[kind] = StepProgram(config, *kind)
        return self._programs[kind]

    def step(
        self,
        sequences: SequenceOf[Sequence],
        rows: int,
        program: StepProgram,
        sizes: SequenceOf[int] | None = None,
    ) -> list[Emitted]:
        """Takes a step of sequences that have been read.

        Args:
          sequences: at most `rows`.
          rows: what the program is compiled for.
          program: verifies and drafts.
          sizes: nodes of each sequence's tree, at most; None for as many as the program verifies.
        """
        table = self._table
        for sequence in sequences:
            self._update(sequence)
        slots = [cast(int, sequence.slot) for sequence in sequences]
        width = self.shapes.width(max((len(s.pages) for s in sequences), default=0))
        trees = self._trees(sequences, rows, program, sizes)
        drafts = self._drafts_of(sequences, trees)
        with self._compiles(program.verified, program.drafted, program.level, rows, width):
            packed, made, scores = self._run(table.rows(slots, rows, width), program, trees)
        buffer = program.host_buffer
        self._drafts = _Drafts(buffer, packed, made) if program.drafted else None
        emitted = []
        for i, sequence in enumerate(sequences):
            count = int(packed[i, 0])
            ended = bool(packed[i, buffer.root] < 0)
            if not program.drafted:
                sequence.leave_drafts()
            sequence.draft = i if sequence.drafts and not ended else None
            logprobs = None
            if scores is not None and sequence.request.logprobs is not None:
                most = sequence.request.logprobs
                own, ids, top = (x[i, :count] for x in scores)
                logprobs = Logprobs(own, ids[:, :most], top[:, :most])
            drafted = 0 if trees is None else int(np.count_nonzero(trees[i, 2]))
            tokens, ranks = buffer.tokens(packed)[i, :count], buffer.ranks(packed)[i, :count]
            emitted.append(Emitted(tokens, ranks, ended, drafted, logprobs, drafts.get(i)))
        return emitted

    def _update(self, sequence: Sequence) -> None:
        """Writes what has changed since a sequence's last step."""
        row = self._table.numbers[sequence.slot]
        row[LENGTH], row[REMAINING] = sequence.read, sequence.remaining
        newest = sequence.tokens[-CONTEXT:]
        row[AT_CONTEXT : AT_CONTEXT + CONTEXT] = -1
        row[AT_CONTEXT + CONTEXT - len(newest) : AT_CONTEXT + CONTEXT] = newest
        row[PAGES : PAGES + len(sequence.pages)] = sequence.pages

    def _trees(
        self,
        sequences: SequenceOf[Sequence],
        rows: int,
        program: StepProgram,
        sizes: SequenceOf[int] | None,
    ) -> np.ndarray | None:
        """The trees to verify, int32 [rows, 3, N + 1]; None for only the roots."""
        nodes = program.verified
        if not nodes:
            return None
        trees = np.zeros((rows, 3, nodes + 1), np.int32)
        places = [i for i, s in enumerate(sequences) if s.draft is not None]
        if self._drafts is not None and places:
            made = self._search_trees(self._drafts, [sequences[i].draft for i in places], nodes)
            trees[places, :, : made.shape[2]] = made[:, :, : nodes + 1]
        for i, sequence in enumerate(sequences):
            trees[i, 0, 0] = sequence.tokens[-1]
        # Nodes are sorted from the best on, and after their parents: the first ones are a tree.
        for i, size in enumerate(sizes or ()):
            trees[i, :, size + 1 :] = 0
        return trees

    def _drafts_of(
        self, sequences: SequenceOf[Sequence], trees: np.ndarray | None
    ) -> dict[int, Draft]:
        """What is verified of the sequences that report it, by their place. Copies: views would
        keep all rows alive."""
        drafts, last = {}, self._drafts
        for i, sequence in enumerate(sequences):
            if not sequence.request.drafts or sequence.draft is None or last is None:
                continue
            size = 0 if trees is None else int(np.count_nonzero(trees[i, 2]))
            if trees is None or not size:
                continue
            packed = last.packed[sequence.draft : sequence.draft + 1]
            parts = *last.host_buffer.candidates_of(packed), last.host_buffer.pairs_of(packed)
            drafts[i] = Draft(trees[i, :, : size + 1].copy(), *(part[0].copy() for part in parts))
        return drafts

    def _search_trees(self, drafts: _Drafts, rows: list[Any], nodes: int) -> np.ndarray:
        """The trees of rows of the last step, int32 [n, 3, ...]."""
        if drafts.trees is not None:
            return drafts.trees[rows]
        return np.asarray(self._resized(drafts.host_buffer, nodes)(drafts.packed[rows]))

    @property
    def _searches_in_program(self) -> bool:
        """Whether steps search the next trees themselves: on the device they are searched for all
        rows at once, and need not come back to it."""
        return self._search is not None and self._search.way == "device"

    def _resized(self, host_buffer: HostBuffer, nodes: int) -> TreeSearch:
        assert self._search is not None
        key = host_buffer, nodes
        if key not in self._searches:
            self._searches[key] = self._search.resized(*key)
        return self._searches[key]

    def _run(
        self, rows: Any, program: StepProgram, trees: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None, Any]:
        history = self._history if program.level == "full" else None
        pools = self._pools_for(program.drafted > 0)
        search = None
        if program.drafted and self._searches_in_program:
            search = self._resized(program.host_buffer, program.drafted)
        pools, history, result = step(program, self._params, pools, history, rows, trees, search)
        self._keep(pools)
        if history is not None:
            self._history = history
        packed = np.asarray(result.packed)
        trees = None if result.trees is None else np.asarray(result.trees)
        scores = None
        if result.scores is not None:
            scores = [np.asarray(x) for x in result.scores if x is not None]
        return packed, trees, scores
