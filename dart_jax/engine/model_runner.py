"""The device's side of the engine: calls the programs with sequences, and keeps their pools."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from dart_jax import _core
from dart_jax.decoding.drafting.text import LONGEST
from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.options import MAX_NODES, Sampling
from dart_jax.decoding.paying import Lessons, Paying
from dart_jax.decoding.reading import ChunkShape
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.decoding.tree import TREE_ROWS
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.fitting import ANYTHING, Fitter, fits_in_programs
from dart_jax.engine.pools import Pools, copy_page, count_pages, empty_pools
from dart_jax.engine.programs import BurstProgram, BurstResult, burst, config_of, read_chunk
from dart_jax.engine.request import MOST_LOGPROBS, Draft, Output, Request, SamplingMode
from dart_jax.engine.rows import AT_CONTEXT, History, RowTable, empty_history, with_history
from dart_jax.engine.sequence import Sequence
from dart_jax.engine.shapes import Shapes

# Nodes that are proposed for each node of a tree that must fit a grammar.
_PROPOSED = 4


class _Drafts(NamedTuple):
    """Drafts of the last burst, by row.

    Attributes:
      trees: int32 [n, 4, N + 1].
      packed: int32 [n, width], the candidates they were built from.
      host_buffer: the layout of `packed`.
    """

    trees: np.ndarray
    packed: np.ndarray
    host_buffer: HostBuffer


class Burst(NamedTuple):
    """What the steps of a burst gave.

    Attributes:
      outputs: of each sequence.
      steps: how many were taken.
      lessons: what it tells about drafts, of all rows together, if anything.
      times: uint32 [steps, 2], see `BurstResult`. None where all slots of a tree take time.
    """

    outputs: list[Output]
    steps: int
    lessons: Lessons[np.ndarray] | None
    times: np.ndarray | None


class ModelRunner:
    """Runs the programs of a target and its drafter for sequences, in pools of pages that hold the
    keys and values of all of them. The first program allocates the pools.

    Attributes:
      config: static; for the largest trees.
      params: see `DecodeParams`.
      search: for these trees, if the drafting method needs one.
      shapes: what programs are compiled for.
      pages: of the pools of each group of devices.
    """

    def __init__(
        self,
        config: DecodeConfig,
        params: DecodeParams,
        search: TreeSearch | None,
        options: EngineConfig,
        shapes: Shapes,
    ):
        """Allocates nothing yet. `shapes` are `shapes_of` the two configs. Raises UserError if the
        memory that the options give does not hold the longest text."""
        self.config, self.params, self.search = config, params, search
        self.shapes, self.pages = shapes, count_pages(config, params, options, shapes)
        self._programs: dict[tuple[int, SamplingMode, bool, bool], BurstProgram] = {}
        self._searches: dict[tuple[HostBuffer, int], TreeSearch] = {}
        self._history: History | None = None
        group = shapes.slots // shapes.groups
        length = shapes.pages_each * shapes.page if config.reads_texts else None
        self._table = RowTable(shapes.slots, shapes.pages_each, group, length)
        self._drafts: _Drafts | None = None

    @functools.cached_property
    def _pools(self) -> Pools:
        return empty_pools(self.config, self.params, pages=self.pages, page=self.shapes.page)

    @property
    def vocab_size(self) -> int:
        """The target's, V."""
        return self.config.target.vocab_size

    @functools.cached_property
    def kv_bytes(self) -> int:
        """Bytes of the pools."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._pools))

    @property
    def reads_drafts(self) -> bool:
        """True if the drafter must read all that is written."""
        return self._pools.draft is not None

    def begin(self, sequence: Sequence, shared: np.ndarray | None = None) -> None:
        """Prepares slot and pages of a sequence that will be read; `shared`: see
        `RowTable.begin`."""
        slot = sequence.slot
        assert slot is not None
        if sequence.copy is not None:
            self.copy(*sequence.copy, group=slot * self.shapes.groups // self.shapes.slots)
            sequence.copy = None
        self._table.begin(slot, sequence.request, self.vocab_size, shared)
        # Of any mode: with one that needs a history, a step adds the logit bias of all slots.
        if sequence.mode == "full" or self._history is not None:
            history = self._history or empty_history(self.shapes.slots, self.vocab_size)
            text = sequence.tokens, sequence.prompt_length
            self._history = with_history(history, slot, sequence.request, *text)

    def copy(self, source: int, target: int, group: int = 0) -> None:
        """Copies a page of a group of devices."""
        pages = np.zeros((2, self.shapes.groups), np.int32)
        pages[:, group] = source, target
        self._pools = copy_page(self.config.reading, self._pools, *pages)

    def read(self, texts: Mapping[int, Sequence], rows: int, length: int, most: int) -> int:
        """Reads the next tokens of sequences, all with or all without the drafter, and all with or
        all without scores; returns for how many of each group it takes time.

        Args:
          texts: the sequences, by their rows among all groups' rows.
          rows: of each group, for which the program is compiled.
          length: tokens of each, for which it is compiled.
          most: tokens that are read, where that takes less time than reading all.
        """
        tokens = np.zeros((rows * self.shapes.groups, length + 1), np.int32)
        start = np.zeros(len(tokens), np.int32)
        pages = np.full((len(tokens), self.shapes.pages_each), -1, np.int32)
        first, used = next(iter(texts.values())), None
        if self.shapes.only_used and len(tokens) == 1:
            used = min(first.num_unread_tokens, length, most)
        for place, sequence in texts.items():
            start[place] = sequence.next_position
            new = sequence.tokens[start[place] : start[place] + length + 1]
            tokens[place, : len(new)] = new
            pages[place, : len(sequence.pages)] = sequence.pages
        drafts, scored = first.drafter_reads, first.needs_scores
        scores = self.read_tokens(tokens, start, pages, used, drafts=drafts, scored=scored)
        for place, sequence in texts.items():
            if scores is not None:
                of_place = jax.tree.map(lambda x, place=place: x[place], scores)
                sequence.add_scores(of_place, used or length)
            sequence.advance(used or length)
        return used or rows * length

    def read_tokens(
        self,
        tokens: np.ndarray,
        start: np.ndarray,
        pages: np.ndarray,
        used: int | None,
        *,
        drafts: bool,
        scored: bool = False,
    ) -> TokenScores | None:
        """Reads tokens, with the drafter or without; returns the scores of those after them, on
        the host, if `scored`. See `read_chunk`, for the first arguments, too."""
        shape = ChunkShape(tokens.shape[1] - 1, self.shapes.filled(int(start.max())))
        drafts = drafts and self.reads_drafts
        config = self.config if drafts else self.config.plain
        pools, scores = read_chunk(
            config.scoring(MOST_LOGPROBS) if scored else config.reading,
            self.params,
            self._pools_for(drafts),
            tokens,
            start,
            pages,
            None if used is None else np.int32(used),
            shape=shape,
        )
        self._keep(pools)
        return jax.device_get(scores)

    def _pools_for(self, drafts: bool) -> Pools:
        """Returns the pools that a program needs."""
        return self._pools if drafts else self._pools._replace(draft=None)

    def _keep(self, pools: Pools) -> None:
        """Keeps what a program has written."""
        self._pools = (
            pools if pools.draft is not None else self._pools._replace(target=pools.target)
        )

    @property
    def search_seconds(self) -> float:
        """Time of all searches on the host so far."""
        return sum(search.seconds for search in self._searches.values())

    def wait(self) -> None:
        """Waits until all is computed."""
        jax.block_until_ready(self._pools)

    def compile(self, program: BurstProgram, rows: int, width: int) -> None:
        """Compiles a program of bursts for tables of `width` columns: runs it without a request."""
        nodes = program.config.nodes
        paying = Paying.all(nodes) if nodes and not self.shapes.fixed else None
        trust = np.ones(LONGEST, np.float32)
        self.burst({}, rows, program, paying=paying, trust=trust, width=width)

    def compile_beginning(self, mode: SamplingMode) -> None:
        """Compiles what begins a request of a mode: fills and frees the first slot, if nothing
        runs."""
        request = Request(np.zeros(1, np.int32), 1, Sampling(1.0))
        sequence = Sequence(request, 2)
        sequence.slot, sequence.mode = 0, mode
        self.begin(sequence)
        self._table.clear(0)

    def program(
        self, nodes: int, mode: SamplingMode, *, follows: bool = False, masked: bool = False
    ) -> BurstProgram:
        """Returns the program of bursts with trees of `nodes` nodes; see `BurstProgram`."""
        kind = nodes, mode, follows and self.reads_drafts, masked
        if kind not in self._programs:
            config, steps = config_of(self.config, nodes, mode), self.shapes.steps
            if masked and not fits_in_programs(config.execution):
                steps = 1
            self._programs[kind] = BurstProgram(config, mode, steps, *kind[2:])
        return self._programs[kind]

    def burst(
        self,
        texts: Mapping[int, Sequence],
        rows: int,
        program: BurstProgram,
        limit: int = 1,
        *,
        least: int = 1,
        paying: Paying[np.ndarray] | None = None,
        trust: np.ndarray | None = None,
        width: int | None = None,
    ) -> Burst:
        """Takes steps of sequences that have been read, until all have ended.

        Args:
          texts: the sequences that take part, by their rows among all groups' rows.
          rows: of each group, for which the program is compiled.
          program: verifies and drafts.
          limit: the most steps, at most `program.steps`; the sequences have pages for them.
          least: end also when fewer sequences than that go on.
          paying: says which nodes pay, by default all.
          trust: of what texts draft, see `Texts`; needed where they do.
          width: columns of the table of pages, by default as many as the sequences need.
        """
        config, count = program.config, rows * self.shapes.groups
        slots: list[int | None] = [None] * count
        for place, sequence in texts.items():
            drafted = sequence.drafter_is_current or not self.reads_drafts
            self._table.update(sequence, config.nodes if drafted else 0)
            slots[place] = sequence.slot
        if width is None:
            width = self.shapes.width(max(len(each.pages) for each in texts.values()))
        trees = self._trees(texts, count, config, trust)
        fitter, masks = self._fit(program, texts, count, trees)
        history = None
        if program.mode == "full":
            history = self._history or empty_history(self.shapes.slots, self.vocab_size)
        search = None
        if self.search is not None and config.searches:
            search = self._resized(self.search, config.host_buffer, config.nodes)
        pools, history, result = burst(
            program,
            self.params,
            self._pools_for(config.nodes > 0 or program.follows),
            history,
            self._table.rows(slots, width, tokens=config.reads_texts),
            trees,
            search,
            np.int32(limit),
            np.int32(least),
            masks,
            None if fitter is None else np.int32(fitter.handle),
            paying,
            trust if config.texts_draft else None,
        )
        self._keep(pools)
        if history is not None:
            self._history = history
        result = jax.device_get(result)
        drafts = self._drafts_of(texts, trees, result.counts[:, 3])
        self._drafts = None
        if result.trees is not None:
            self._drafts = _Drafts(result.trees, result.packed, config.host_buffer)
        if fitter is not None:
            fitter.advance(result.tokens, result.counts[:, 0])
        outputs = [
            self._output(sequence, place, program, result, drafts.get(place))
            for place, sequence in texts.items()
        ]
        steps, lessons, times = int(result.counts[:, 1].max()), result.lessons, result.times
        if lessons is not None:
            lessons = Lessons(*(x.sum(axis=0) for x in lessons))
        return Burst(outputs, steps, lessons, None if times is None else times[0, :steps])

    def _output(
        self,
        sequence: Sequence,
        place: int,
        program: BurstProgram,
        result: BurstResult[np.ndarray],
        draft: Draft | None,
    ) -> Output:
        """Adds a sequence's new tokens to it, and returns them."""
        count, _, verified, nodes = result.counts[place].tolist()
        goes_on, drafting = bool(result.active[place]), program.config.nodes > 0
        # Copies: views would keep all rows alive.
        tokens, first = result.tokens[place, :count].copy(), not len(sequence.text)
        reads = not self.reads_drafts or drafting or program.follows
        sequence.append(tokens, drafted=reads)
        drafted = drafting and goes_on and (sequence.drafter_is_current or not self.reads_drafts)
        sequence.draft_row = place if drafted else None
        finish, logits = None, self.config.logits
        scores = result.scores if logits.reported or sequence.request.logprobs is not None else None
        if scores is not None:
            scores = jax.tree.map(lambda x: x[place, :count].copy(), scores)
        if not goes_on:
            finish = "stop" if int(tokens[-1]) in sequence.request.stop_ids else "length"
        return Output(
            tokens,
            result.ranks[place, :count].copy(),
            finish,
            verified,
            nodes,
            scores,
            sequence.prompt_logprobs if first else None,
            sequence.cached if first else 0,
            draft,
        )

    def _trees(
        self,
        texts: Mapping[int, Sequence],
        rows: int,
        config: DecodeConfig,
        trust: np.ndarray | None,
    ) -> np.ndarray | None:
        """Returns the trees to verify first, int32 [rows, 4, N + 1], or None for plain decoding."""
        nodes = config.nodes
        if not nodes:
            return None
        trees = np.zeros((rows, TREE_ROWS, nodes + 1), np.int32)
        for place, sequence in texts.items():
            trees[place, 0, 0] = sequence.tokens[-1]
            if sequence.draft_row is not None and self._drafts is not None:
                # Nodes are sorted from the best on, and after their parents: the first are a tree.
                tree = self._drafts.trees[sequence.draft_row, :, : nodes + 1]
                trees[place, :, : tree.shape[1]] = tree
            elif config.texts_draft and trust is not None:
                text = self._table.text(sequence)
                _core.text_tree(text, trees[place], depth=config.text_depth, trust=trust)
        return trees

    def _fit(
        self,
        program: BurstProgram,
        texts: Mapping[int, Sequence],
        rows: int,
        trees: np.ndarray | None,
    ) -> tuple[Fitter | None, np.ndarray | None]:
        """Fits the first trees of a burst to the grammars of their texts; returns what fits later
        ones, and the tokens that may follow each node, uint32 [rows, N + 1, W]. None for both if no
        text has a grammar."""
        if not program.masked:
            return None, None
        if trees is None:
            trees = np.zeros((rows, TREE_ROWS, 1), np.int32)
        fitter, last = Fitter(texts, program.config, self._proposals), self._drafts
        masks = np.full((rows, trees.shape[2], -(-self.vocab_size // 32)), ANYTHING)
        for place, text in texts.items():
            if text.matcher is not None:
                row, candidates = text.draft_row, None
                if last is not None and row is not None:
                    candidates = last.host_buffer, last.packed[row : row + 1]
                trees[place], masks[place] = fitter.fit(place, trees[place], candidates)
        return fitter, masks

    def _drafts_of(
        self, texts: Mapping[int, Sequence], trees: np.ndarray | None, nodes: np.ndarray
    ) -> dict[int, Draft]:
        """Returns the drafts of the sequences that report them, by their place; `nodes` [n] were
        verified. Copies: views would keep all rows alive."""
        drafts, last = {}, self._drafts
        for i, sequence in texts.items():
            if not sequence.request.drafts or trees is None or not trees[i, 2].any():
                continue
            if sequence.draft_row is not None and last is not None:
                packed = last.packed[sequence.draft_row : sequence.draft_row + 1]
                parts = last.host_buffer.unpack(packed)
            else:  # the text alone
                context = self._table.numbers[sequence.slot, AT_CONTEXT:][None]
                parts = HostBuffer(positions=0, candidates=0).unpack(context)
            drafts[i] = Draft(
                trees[i, :3, : nodes[i] + 1].copy(), *(part[0].copy() for part in parts)
            )
        return drafts

    def _proposals(self, host_buffer: HostBuffer, nodes: int) -> HostSearch | None:
        """Returns the search for more nodes than these, if the host searches."""
        if not isinstance(self.search, HostSearch):
            return None
        search = self._resized(self.search, host_buffer, min(_PROPOSED * nodes, MAX_NODES))
        assert isinstance(search, HostSearch)
        return search

    def _resized(self, search: TreeSearch, host_buffer: HostBuffer, nodes: int) -> TreeSearch:
        """Returns the search for trees of another size, made once."""
        key = host_buffer, nodes
        if key not in self._searches:
            same = key == (search.host_buffer, search.nodes)
            self._searches[key] = search if same else search.resized(*key)
        return self._searches[key]
