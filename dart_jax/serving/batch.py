"""The device's side of the engine: models, pools and programs, called with sequences."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import repeat
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.drafting import PromptLookupConfig
from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.prefill import ChunkShape, empty_caches
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.memory import parse_memory
from dart_jax.model import DartModel
from dart_jax.serving.config import Level, ServingConfig
from dart_jax.serving.programs import (
    BurstProgram,
    BurstResult,
    History,
    Pools,
    begin_history,
    burst,
    config_of,
    empty_history,
    empty_pools,
    read_chunk,
)
from dart_jax.serving.request import Draft, Logprobs
from dart_jax.serving.rows import (
    AT_CONTEXT,
    LENGTH,
    NODES,
    PAGES,
    REMAINING,
    Rows,
    RowTable,
)
from dart_jax.serving.scheduling.sequence import Sequence
from dart_jax.serving.shapes import Shapes

# Memory of the pools, at most, unless it is set.
_MOST_MEMORY = 8 * 10**9


class Emitted(NamedTuple):
    """What a burst gave one sequence.

    Attributes:
      tokens: int32 [n].
      ranks: int32 [n], the places in their trees of the nodes that drafted them; 0 for the target's
        own.
      steps: how many it took part in.
      trees: how many were verified.
      nodes: of these trees, all together.
      ended: whether no more tokens follow.
      logprobs: of the tokens, if they were asked for.
      draft: what was verified, if that was asked for and anything was drafted.
    """

    tokens: np.ndarray
    ranks: np.ndarray
    steps: int
    trees: int
    nodes: int
    ended: bool
    logprobs: Logprobs | None
    draft: Draft | None


class _Drafts(NamedTuple):
    """What the last burst drafted, by row.

    Attributes:
      trees: int32 [n, 3, N + 1].
      packed: int32 [n, width], the candidates they were built from.
      host_buffer: the layout of `packed`.
    """

    trees: np.ndarray
    packed: np.ndarray
    host_buffer: HostBuffer


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
        self._programs: dict[tuple[int, Level], BurstProgram] = {}
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

    def program(self, nodes: int, level: Level) -> BurstProgram:
        """The program of bursts with trees of so many nodes; 0 for plain decoding."""
        kind = nodes, level
        if kind not in self._programs:
            config = config_of(self._config, nodes, level)
            self._programs[kind] = BurstProgram(config, level, self.shapes.steps)
        return self._programs[kind]

    def burst(
        self,
        sequences: SequenceOf[Sequence],
        rows: int,
        program: BurstProgram,
        limit: int = 1,
        *,
        until_one_ends: bool = False,
        nodes: SequenceOf[int] | None = None,
    ) -> list[Emitted]:
        """Takes steps of sequences that have been read, until all have ended.

        Args:
          sequences: at most `rows`.
          rows: what the program is compiled for.
          program: verifies and drafts.
          limit: the most steps, at most `program.steps`; the sequences have pages for them.
          until_one_ends: end also when a sequence does.
          nodes: of each sequence's trees, at most; None for as many as the program's.
        """
        table, config = self._table, program.config
        for sequence, most in zip(sequences, nodes or repeat(config.nodes), strict=False):
            self._update(sequence, most)
        slots = [cast(int, sequence.slot) for sequence in sequences]
        width = self.shapes.width(max((len(s.pages) for s in sequences), default=0))
        trees = self._trees(sequences, rows, config.nodes)
        drafts = self._drafts_of(sequences, trees)
        with self._compiles(config.nodes, program.level, rows, width):
            result = self._run(
                program, table.rows(slots, rows, width), trees, limit, until_one_ends
            )
        self._drafts = None
        if result.trees is not None:
            self._drafts = _Drafts(result.trees, result.packed, config.host_buffer)
        emitted = []
        for i, sequence in enumerate(sequences):
            count, steps, verified, drafted = result.counts[i].tolist()
            going = bool(result.active[i])
            if not config.nodes:
                sequence.leave_drafts()
            sequence.draft = i if sequence.drafts and going else None
            emitted.append(
                Emitted(
                    result.tokens[i, :count],
                    result.ranks[i, :count],
                    steps,
                    verified,
                    drafted,
                    not going,
                    _logprobs(sequence, result.scores, i, count),
                    drafts.get(i),
                )
            )
        return emitted

    def _update(self, sequence: Sequence, nodes: int) -> None:
        """Writes what has changed since a sequence's last burst."""
        row = self._table.numbers[sequence.slot]
        row[LENGTH], row[REMAINING], row[NODES] = sequence.read, sequence.remaining, nodes
        newest = sequence.tokens[-CONTEXT:]
        row[AT_CONTEXT : AT_CONTEXT + CONTEXT] = -1
        row[AT_CONTEXT + CONTEXT - len(newest) : AT_CONTEXT + CONTEXT] = newest
        row[PAGES : PAGES + len(sequence.pages)] = sequence.pages

    def _trees(self, sequences: SequenceOf[Sequence], rows: int, nodes: int) -> np.ndarray | None:
        """The trees to verify first, int32 [rows, 3, N + 1]; None for plain decoding."""
        if not nodes:
            return None
        trees = np.zeros((rows, 3, nodes + 1), np.int32)
        for i, sequence in enumerate(sequences):
            trees[i, 0, 0] = sequence.tokens[-1]
            if sequence.draft is not None and self._drafts is not None:
                # Nodes are sorted from the best on, and after their parents: the first are a tree.
                tree = self._drafts.trees[sequence.draft, :, : nodes + 1]
                trees[i, :, : tree.shape[1]] = tree
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
            if trees is None or not trees[i, 2].any():
                continue
            size = min(
                int(np.count_nonzero(trees[i, 2])), self._table.numbers[sequence.slot][NODES]
            )
            packed = last.packed[sequence.draft : sequence.draft + 1]
            parts = *last.host_buffer.candidates_of(packed), last.host_buffer.pairs_of(packed)
            drafts[i] = Draft(trees[i, :, : size + 1].copy(), *(part[0].copy() for part in parts))
        return drafts

    def _search_of(self, config: DecodeConfig) -> TreeSearch | None:
        """The search for a config's trees."""
        if self._search is None or not config.searches:
            return None
        key = config.host_buffer, config.nodes
        if key not in self._searches:
            self._searches[key] = self._search.resized(*key)
        return self._searches[key]

    def _run(
        self,
        program: BurstProgram,
        rows: Rows,
        trees: np.ndarray | None,
        limit: int,
        until_one_ends: bool,
    ) -> BurstResult:
        """Runs a burst; returns its result on the host."""
        history = self._history if program.level == "full" else None
        pools, search = self._pools_for(program.config.nodes > 0), self._search_of(program.config)
        pools, history, result = burst(
            program,
            self._params,
            pools,
            history,
            rows,
            trees,
            search,
            np.int32(limit),
            np.bool_(until_one_ends),
        )
        self._keep(pools)
        if history is not None:
            self._history = history
        result = jax.device_get(result)
        if search is not None:
            search.check()
        return result


def _logprobs(
    sequence: Sequence, scores: TokenScores | None, row: int, count: int
) -> Logprobs | None:
    most = sequence.request.logprobs
    if scores is None or most is None:
        return None
    assert scores.logprobs is not None
    assert scores.top_ids is not None
    assert scores.top_logprobs is not None
    own, ids, top = (x[row, :count] for x in (scores.logprobs, scores.top_ids, scores.top_logprobs))
    return Logprobs(own, ids[:, :most], top[:, :most])
