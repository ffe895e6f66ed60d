"""Programs that are compiled before the requests that need them come."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np

from dart_jax.engine.config import EngineConfig
from dart_jax.engine.engine import Engine
from dart_jax.engine.request import SamplingMode


def compile_programs(
    engine: Engine, config: EngineConfig, mode: SamplingMode
) -> Iterator[tuple[str, bool]]:
    """Runs the programs that requests may run, one at a time, the most important ones first. No
    request may run during a part; between two they may.

    `mode`: how requests sample that say nothing of it.

    Yields:
      After every part, how much has been done, and whether a single text can be written.
    """
    runner, shapes = engine.runner, engine.runner.shapes
    if not config.modes:
        return

    def read(length: int, start: int, drafts: bool, scored: bool = False) -> None:
        pages = np.full((shapes.groups, shapes.pages_each), -1, np.int32)
        tokens = np.zeros((shapes.groups, length + 1), np.int32)
        starts, used = np.full(shapes.groups, start, np.int32), 1 if shapes.only_used else None
        runner.read_tokens(tokens, starts, pages, used, drafts=drafts, scored=scored)

    def burst(mode: SamplingMode, rows: int, width: int, size: int, **others: bool) -> None:
        runner.compile(runner.program(size, mode, **others), rows, width)

    drafts, one, narrow = shapes.most_nodes > 0, shapes.rows[0], shapes.widths[0]
    size = engine.tree_sizes.choose(one, "greedy").size
    first: list[SamplingMode] = [each for each in config.modes if each in ("greedy", mode)]
    works = [
        partial(read, shapes.chunks[0], 0, drafts),
        partial(read, shapes.chunks[-1], 0, drafts),
    ]
    works += [partial(burst, each, one, narrow, size) for each in first]
    works += [partial(runner.compile_beginning, mode)]
    works += [partial(runner.copy, 0, 0)] * config.prefix_cache
    enough = len(works)
    starts = (0, *(n * shapes.page for n in shapes.widths)) if shapes.bounded else (0,)
    reads = [*product(shapes.chunks, starts)]
    works += [partial(read, *read_, drafts) for read_ in reads]
    works += [partial(burst, each, one, narrow, size, masked=True) for each in first]
    works += [partial(runner.compile_beginning, each) for each in config.modes]
    works += [partial(read, *read_, False) for read_ in reads if drafts]
    # Those under a grammar last: fewer texts are.
    for masked, each, rows in product((False, True), config.modes, shapes.rows):
        for width in shapes.widths:
            every = partial(burst, each, rows, width, masked=masked)
            works += [partial(every, nodes) for nodes in shapes.sizes[rows]]
            if drafts and not shapes.fixed:
                works.append(partial(every, 0, follows=True))
    for drafted, read_ in product({drafts, False}, reads):
        works.append(partial(read, *read_, drafted, scored=True))
    for done, work in enumerate(works, 1):
        work()
        yield f"compiled {done} of {len(works)} programs", done >= enough
