"""Compiles all programs before the first request, and times the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from dart_jax.serving.batch import Batch
from dart_jax.serving.config import Level, ServingConfig
from dart_jax.serving.tree_size import TreeSizes

# Runs of every program after the first, which are timed.
_TIMED = 3


def step_kinds(sizes: tuple[int, ...], fixed: bool) -> Iterator[tuple[int, int]]:
    """The tree sizes with which steps verify and draft: (verified, drafted)."""
    if sizes == (0,):
        yield 0, 0
        return
    yield 0, sizes[-1]  # the first step of a text
    for size in sizes[1:]:
        yield size, size
    if not fixed:
        yield 0, 0


def warm_up(
    batch: Batch,
    config: ServingConfig,
    sizes: TreeSizes,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> None:
    """Runs everything that requests may run.

    Args:
      batch: without sequences.
      config: says how much.
      sizes: learns what steps cost.
      progress: is told what has been done.
      cancelled: whether to stop early.
    """
    if not config.levels:
        return
    batch.warm_reads()
    batch.warm_slots()
    todo = list(_steps(batch, config.levels))
    for done, (rows, width, level, verified, drafted) in enumerate(todo):
        if cancelled():
            return
        program = batch.program(verified, drafted, level)
        batch.warm_step(rows, width, program)
        for _ in range(_TIMED):
            began = time.perf_counter()
            batch.warm_step(rows, width, program)
            if verified == drafted:
                sizes.learn_cost(rows, level, verified, time.perf_counter() - began)
        progress(f"compiled {done + 1} of {len(todo)} programs")


def _steps(batch: Batch, levels: tuple[Level, ...]) -> Iterator[tuple[int, int, Level, int, int]]:
    """All programs of steps: rows, width of the tables, level, nodes verified and drafted."""
    shapes = batch.shapes
    for level in levels:
        for rows in shapes.rows:
            for width in shapes.widths:
                for verified, drafted in step_kinds(shapes.sizes[rows], shapes.fixed):
                    yield rows, width, level, verified, drafted
