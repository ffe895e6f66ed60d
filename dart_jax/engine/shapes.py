"""Shapes that programs are compiled for: few numbers of rows, tree sizes, chunks and table
widths; and the draft trees that are the default."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from dart_jax.decoding.drafting import AnyDrafter
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.config import EngineConfig
from dart_jax.errors import UserError
from dart_jax.models.traits import Traits

# A table has at most this many times the places that are needed, and so has a chunk.
STEP = 4

# Rows that take as long as the fixed time of a chunk on a CPU: on two cores of a Xeon a chunk of
# smollm2's takes 9 ms and 1.2 ms for each row, of the demo's 1.5 and 0.2 ms.
_CHUNK_ROWS = 8

# The same on an accelerator, which waits for its weights.
_CHUNK_ROWS_ELSEWHERE = 256

# Tokens of the longest texts, unless it is set.
_MAX_LENGTH = 8192

# Tokens of prompts that are read at a time, unless it is set: by servers on a CPU, and elsewhere.
_CHUNK_ON_CPU, CHUNK = 128, 512

# Steps of a burst, unless it is set: on an accelerator a call from the host takes as long as half a
# step, on a CPU as long as several of a small model; but requests arrive, and streamed texts are
# read, meanwhile.
_STEPS, STEPS_OFFLINE = 32, 256

# Steps between two looks of the host at all texts: for stop strings, or to keep whole scores.
CHECKED_STEPS = 8

# Sequences from which on steps of texts that begin together have fewer rows when many of them have
# ended: programs for fewer rows must be compiled.
_SHRINKS = 8

# Nodes that programs of one row, whose steps verify as many as pay, mostly have room for: drafts of
# eight positions, of which few pay, take a tenth of a step more.
_FEW_NODES = 4

# Rows of all sequences that a step verifies, about: on an accelerator, which waits for its weights
# up to some hundred; and their nodes on a CPU, where batches of 3 and more are fastest without.
_ROWS, _NODES_ON_CPU = 400, 16

# Nodes of a tree that the text alone drafts: a long path that is copied.
_TEXT_NODES = 16


def default_search(drafter: AnyDrafter | None = None, **options: Any) -> SearchConfig:
    """Returns the search parameters for a drafter: the paper's, unless `options` say otherwise.

    Pair scores know much of what the n-gram model knows, so its weight is halved with them.
    """
    if drafter is not None and drafter.traits.pairs:
        options = {"ngram_weight": 0.25, **options}
    return SearchConfig(**options)


def default_tree(drafter: AnyDrafter | None = None, batch: int = 1) -> tuple[int, SearchConfig]:
    """Returns the default number of draft tree nodes, besides the root, and the search parameters.

    On CPU, where every row costs time, there are few, as many for a whole batch as for one
    sequence; elsewhere as many as in the reference implementations: 60 nodes for DART and block
    drafters, 59 for EAGLE-3, whose 60 include the root, and fewer in batches of more than 6
    sequences. Methods that draft a single chain, such as a draft model, get short chains on every
    device.

    Args:
      drafter: the drafter, by default DART.
      batch: sequences decoded together.
    """
    batch = max(batch, 1)
    on_cpu = jax.default_backend() == "cpu"
    few = max(8 // batch, 1) if on_cpu else 8
    traits = Traits(kind="DART") if drafter is None else drafter.traits
    most = few if on_cpu or traits.chain else max(_ROWS // batch - 1, 1)
    return min(traits.nodes, most), default_search(drafter)


def tree_sizes(drafter: AnyDrafter | None, rows: int = 1, *, text: bool = False) -> tuple[int, ...]:
    """Returns the sizes of draft trees that steps choose from, ascending from 0.

    On a CPU the largest has at most twice `default_tree`'s nodes: more are slower than plain
    decoding whatever is accepted. There are few sizes, since programs are compiled for each; and
    where nothing but the text drafts, which mostly has little to say, only one, and on a CPU none
    for several rows.

    Args:
      drafter: the drafting method's config, or None without one.
      rows: sequences that a step decodes together.
      text: whether texts draft, too.
    """
    on_cpu = jax.default_backend() == "cpu"
    if drafter is None:
        most = min(_TEXT_NODES, max(_ROWS // rows - 1, 1))
        return (0, most) if text and not (on_cpu and rows > 1) else (0,)
    most, _ = default_tree(drafter, rows)
    if on_cpu and not (drafter.traits.chain and drafter.traits.sequential):
        most = min(2 * most, max(_NODES_ON_CPU // rows, 1))
    sizes = [most]
    while len(sizes) < 3 and sizes[-1] > 1:
        sizes.append(max(sizes[-1] // 2, 1))
    return (0, *reversed(sizes))


def length_bucket(tokens: int) -> int:
    """Rounds a sequence's cache length up to one of 128, 192, 256, 384, 512, 768, ...

    Programs are compiled per length, so there are few of them; above 128 at most a third is unused.
    """
    size = 128
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of one engine's programs.

    Attributes:
      slots: requests that are decoded together, at most, by all groups of devices.
      groups: groups of devices, which have as many slots each.
      max_length: of a prompt and its new tokens together.
      page: rows of a page.
      pages_each: pages of the longest text, and of the rows that a step writes beyond it.
      rows: numbers of rows of a group's steps, ascending.
      sizes: tree sizes by number of rows, ascending from 0; only one where steps decide themselves
        and nothing but the text drafts: a step without drafts is then one of plain decoding.
      fixed: whether steps have trees of the largest size only.
      stepwise: whether steps of one row decide themselves how many nodes they verify.
      chunks: numbers of tokens of a prompt that are read at a time, ascending.
      only_used: whether reading a prompt takes time only for the rows of a chunk that are used.
      together: whether more rows of a chunk cost little: several prompts are read at a time, as
        many as fill the longest chunk.
      steps: steps of a burst, at most.
      bounded: whether attention reads all pages of a table, so that tables should be narrow; the
        kernels read the pages that are used.
    """

    slots: int
    groups: int
    max_length: int
    page: int
    pages_each: int
    rows: tuple[int, ...]
    sizes: dict[int, tuple[int, ...]]
    fixed: bool
    stepwise: bool
    chunks: tuple[int, ...]
    only_used: bool
    together: bool
    steps: int
    bounded: bool

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest tree."""
        return max(each[-1] for each in self.sizes.values())

    def rows_for(self, sequences: int) -> int:
        """Rows of a step of a number of sequences of a group."""
        return next(n for n in self.rows if n >= sequences)

    def fewer_rows(self, rows: int) -> int:
        """Returns the next smaller number of rows; 0 if there is none."""
        return max((n for n in self.rows if n < rows), default=0)

    @property
    def chunk_rows(self) -> int:
        """Rows that take about as long as the fixed time of a chunk."""
        return _CHUNK_ROWS_ELSEWHERE if self.together else _CHUNK_ROWS

    def longest_chunk(self, rows: int) -> int:
        """Returns the longest chunk of at most `rows` rows if there is one, or the shortest of
        all."""
        return max((n for n in self.chunks if n <= rows), default=self.chunks[0])

    def chunk_for(self, tokens: int) -> int:
        """Returns the length of the next chunk, such that `tokens` are read the soonest."""
        enough = next((n for n in self.chunks if n >= tokens), self.chunks[-1])
        if self.together or tokens >= self.chunks[-1]:
            return enough
        fewer = max((n for n in self.chunks if n < tokens), default=enough)
        return min(enough, fewer, key=lambda first: self._cost(tokens, first))

    def _cost(self, tokens: int, first: int) -> int:
        """Returns the cost of reading `tokens` with a chunk of length `first` first, in rows."""
        rest = tokens - first
        others = self._cost(rest, self.chunk_for(rest)) if rest > 0 else 0
        return first + _CHUNK_ROWS + others

    def prompts_for(self, chunk: int) -> int:
        """Prompts of a group of which chunks of a length are read together, at most."""
        most = min(self.chunks[-1] // chunk, self.slots // self.groups)
        return max(most, 1) if self.together else 1

    def width(self, pages: int) -> int:
        """Columns of the tables of a step, of which no sequence uses more than `pages`."""
        return next(n for n in self.widths if n >= pages)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of columns of tables, ascending."""
        return up_to(self.pages_each) if self.bounded else (self.pages_each,)

    def filled(self, start: int) -> int:
        """Rows in which those before a chunk are found, see `ChunkShape`."""
        pages = -(-start // self.page)
        return self.page * (self.width(pages) if pages else 0 if self.bounded else self.pages_each)


def up_to(most: int, step: int = STEP) -> tuple[int, ...]:
    """1 and its multiples by powers of `step`, up to `most`, which is the last."""
    numbers = [1]
    while numbers[-1] < most:
        numbers.append(min(numbers[-1] * step, most))
    return tuple(numbers)


def shapes_of(config: DecodeConfig, options: EngineConfig) -> Shapes:
    """Returns the shapes of a model's engine.

    Args:
      config: of the largest trees.
      options: of the engine.

    Raises:
      UserError: the options do not fit the target.
    """
    execution, most = config.execution, config.target.max_length
    length = options.max_length or min(most, _MAX_LENGTH)
    if length > most:
        raise UserError(
            f"a maximum length of {length} tokens is beyond the target's {most} positions; lower it"
        )
    on_cpu, groups = jax.default_backend() == "cpu", execution.devices.groups
    slots = -(-options.slots // groups)
    chunk = options.chunk or (_CHUNK_ON_CPU if on_cpu and not options.offline else CHUNK)
    steps = options.burst or (STEPS_OFFLINE if options.offline else _STEPS)
    if options.offline:
        rows = [n for n in up_to(slots) if n == slots or _SHRINKS <= slots < _SHRINKS * n]
        page = config.capacity(length)
    else:
        # On CPUs every row costs time, so a step has at most twice the rows of its sequences.
        rows = up_to(slots, STEP // 2 if on_cpu else STEP)
        page, chunk = options.page, min(chunk, length)
    fixed, stepwise = options.tree_nodes is not None, config.decides_in_steps and groups == 1
    sizes: dict[int, tuple[int, ...]] = {
        n: (0, config.nodes) if fixed else tree_sizes(config.drafter, n, text=config.text)
        for n in rows
    }
    # Slots of a tree take time there, and mostly the text has nothing to say.
    silent = on_cpu and config.drafter is None and not (fixed or stepwise)
    if silent or not config.nodes:
        sizes = dict.fromkeys(rows, (0,))
    elif stepwise and not fixed and 1 in sizes:
        most_nodes = sizes[1][-1]
        few = {0, min(_FEW_NODES, most_nodes)} if config.drafter is not None else {}
        sizes[1] = tuple(sorted({*few, most_nodes}))
    only_used = config.reads_only_used
    return Shapes(
        slots=slots * groups,
        groups=groups,
        max_length=length,
        page=page,
        pages_each=-(-length // page),
        rows=tuple(rows),
        sizes=sizes,
        fixed=fixed,
        stepwise=stepwise,
        chunks=tuple(
            sorted({chunk} if only_used else {max(chunk // STEP**n, 1) for n in range(3)})
        ),
        only_used=only_used,
        together=not on_cpu,
        steps=min(steps, CHECKED_STEPS) if config.logits.scores else steps,
        bounded=execution.attention == "dense",
    )
