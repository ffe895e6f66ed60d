"""What programs are compiled for: few numbers of rows, tree sizes, chunks and table widths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax

from dart_jax.decoding.drafting import AnyDrafter
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.errors import UserError
from dart_jax.generation.defaults import MAX_NODES, default_search, default_tree
from dart_jax.model import DartModel
from dart_jax.serving.config import ServingConfig

# The longest texts, unless it is set.
_MAX_LENGTH = 8192

# Rows of all sequences that a step verifies, about: more cannot pay. An accelerator waits for its
# weights up to some hundred rows.
_MOST_ROWS = {"cpu": 80}
_MOST_ROWS_ELSEWHERE = 400

# Steps of a burst: on an accelerator a call from the host takes as long as half a step.
_STEPS = {"cpu": 1, "other": 4}

# Sizes of programs for trees of a size that a request asks for: few, since each is compiled.
_ASKED_SIZES = (0, 4, 8, 16, 32, 64, 128, 256, MAX_NODES)

# A table and a chunk have at most this many times the places that are needed, and a step as many
# times the rows of its sequences; on CPUs, where every row costs time, it has half as many.
_STEP = 4


@dataclasses.dataclass(frozen=True)
class Shapes:
    """See the module.

    Attributes:
      max_length: of a prompt and its new tokens together.
      page: rows of a page.
      pages_each: pages that the longest text needs.
      rows: numbers of rows of steps, ascending.
      sizes: tree sizes by number of rows, ascending from 0.
      fixed: whether steps have trees of the largest size only.
      chunks: numbers of tokens that are read at a time, ascending.
      steps: steps of a burst, at most.
      bounded: whether attention reads all pages of a table, so that tables should be narrow; the
        kernels read the pages that are used.
      search: parameters of the tree search.
    """

    max_length: int
    page: int
    pages_each: int
    rows: tuple[int, ...]
    sizes: dict[int, tuple[int, ...]]
    fixed: bool
    chunks: tuple[int, ...]
    steps: int
    bounded: bool
    search: SearchConfig

    @classmethod
    def of(cls, model: DartModel, config: ServingConfig) -> Shapes:
        """The shapes for a model; raises UserError if the options do not fit it."""
        most = model.target.max_length
        length = config.max_length or min(most, _MAX_LENGTH)
        if length > most:
            raise UserError(
                f"--max-length {length} is beyond the target's {most} positions; lower it"
            )
        if config.tree_nodes and model.drafter is None:
            raise UserError("--tree-nodes needs a drafter; pass one, or leave it out")
        if (config.tree_nodes or 0) > MAX_NODES:
            raise UserError(f"--tree-nodes must be at most {MAX_NODES}, got {config.tree_nodes}")
        on_cpu = jax.default_backend() == "cpu"
        rows = _up_to(config.slots, _STEP // 2 if on_cpu else _STEP)
        fixed = config.tree_nodes is not None
        sizes = {n: _sizes(model.drafter, n, config.tree_nodes) for n in rows}
        nodes, search = default_tree(model.drafter)
        if max(each[-1] for each in sizes.values()) > nodes:
            search = default_search(model.drafter)
        kernel = model.execution.attention
        chunk = min(config.chunk or (128 if on_cpu else 512), length)
        return cls(
            max_length=length,
            page=config.page,
            pages_each=-(-length // config.page),
            rows=rows,
            sizes=sizes,
            fixed=fixed,
            chunks=tuple(sorted({max(chunk // _STEP**n, 1) for n in range(3)})),
            steps=config.burst or (_STEPS["cpu"] if on_cpu else _STEPS["other"]),
            bounded=kernel == "dense",
            search=search,
        )

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest tree."""
        return max(each[-1] for each in self.sizes.values())

    def rows_for(self, sequences: int) -> int:
        """Rows of a step of so many sequences."""
        return next(n for n in self.rows if n >= sequences)

    def nodes_for(self, asked: int) -> int:
        """Nodes of the program that verifies trees of a size that a request asks for."""
        return next(size for size in _ASKED_SIZES if size >= asked)

    def chunk_for(self, tokens: int) -> int:
        """Tokens read at a time, where so many must be."""
        return next((n for n in self.chunks if n >= tokens), self.chunks[-1])

    def width(self, pages: int) -> int:
        """Columns of the tables of a step, of which no sequence uses more than so many."""
        return next(n for n in self.widths if n >= pages)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of columns of tables, ascending."""
        return _up_to(self.pages_each) if self.bounded else (self.pages_each,)

    def filled(self, start: int) -> int:
        """Rows in which those before a chunk are found, see `ChunkShape`."""
        pages = -(-start // self.page)
        return self.page * (self.width(pages) if pages else 0 if self.bounded else self.pages_each)

    @property
    def reads(self) -> Iterator[tuple[int, int]]:
        """Chunks and their starts, such that all programs that read are run once."""
        starts = (0, *(n * self.page for n in self.widths)) if self.bounded else (0,)
        for rows in self.chunks:
            for start in starts:
                yield rows, start


def _up_to(most: int, step: int = _STEP) -> tuple[int, ...]:
    """1 and its multiples by powers of `step`, up to `most`, which is the last."""
    found = [1]
    while found[-1] < most:
        found.append(min(found[-1] * step, most))
    return tuple(found)


def _sizes(drafter: AnyDrafter | None, rows: int, fixed: int | None) -> tuple[int, ...]:
    """Tree sizes for steps of so many rows; `fixed` if it is not None."""
    if drafter is None or fixed == 0:
        return (0,)
    if fixed is not None:
        return (0, fixed)
    budget = _MOST_ROWS.get(jax.default_backend(), _MOST_ROWS_ELSEWHERE)
    largest, _ = default_tree(drafter)
    most = min(largest, max(budget // rows - 1, 1))
    sizes = [most]
    while len(sizes) < 3 and sizes[-1] > 1:
        sizes.append(max(sizes[-1] // 2, 1))
    return (0, *reversed(sizes))
