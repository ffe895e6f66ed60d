"""Compiles all programs before the first request, and times the steps.

It decodes sequences of random tokens: all that a step costs is measured, the search included, and a
mixture of experts reads as many of them as it will.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dart_jax.decoding.sampling import Sampling
from dart_jax.serving.batch import Batch
from dart_jax.serving.config import Level, ServingConfig
from dart_jax.serving.request import Request
from dart_jax.serving.sequence import Sequence
from dart_jax.serving.tree_size import TreeSizes

# How often steps are timed. All kinds of steps take turns: whatever disturbs the machine meanwhile
# disturbs them alike.
_ROUNDS = 5

# Tokens of the sequences, at most.
_LENGTH = 256

_OPTIONS: dict[Level, tuple[Sampling, int | None]] = {
    "greedy": (Sampling(), None),
    "sampled": (Sampling(1.0), None),
    "filtered": (Sampling(1.0, top_p=0.9), None),
    "full": (Sampling(), 0),
}


def warm_up(
    batch: Batch, config: ServingConfig, sizes: TreeSizes, progress: Callable[[str], None]
) -> None:
    """Runs everything that requests may run.

    Args:
      batch: without sequences.
      config: says how much.
      sizes: learns what steps cost.
      progress: is told what has been done.
    """
    if not config.levels:
        return
    shapes = batch.shapes
    for rows, start in shapes.reads:
        batch.read_tokens(np.zeros(0, np.int32), start, (), rows)
    todo = sum(len(shapes.kinds(rows)) for rows in shapes.rows) * len(shapes.widths)
    done, todo = 0, todo * len(config.levels)
    for level in config.levels:
        for rows in shapes.rows:
            for width in shapes.widths:
                sequences = _sequences(batch, level, rows, width)
                for verified, drafted in shapes.kinds(rows):
                    batch.step(sequences, rows, batch.program(verified, drafted, level))
                    done += 1
                    progress(f"compiled {done} of {todo} programs")
            for size, seconds in _time(batch, level, rows, sequences).items():
                sizes.learn_cost(rows, level, size, seconds)


def _sequences(batch: Batch, level: Level, rows: int, width: int) -> list[Sequence]:
    """Sequences in the first slots, which use as many columns of their tables as the width."""
    shapes, rng = batch.shapes, np.random.default_rng(0)
    pages = width if shapes.bounded else min(-(-_LENGTH // shapes.page), width)
    length = min(pages * shapes.page, _LENGTH, shapes.max_length - 1)
    sampling, logprobs = _OPTIONS[level]
    sequences = []
    for slot in range(rows):
        tokens = rng.integers(0, batch.vocab_size, length, np.int32)
        request = Request(tokens, 1, sampling, logprobs=logprobs, seed=slot)
        sequence = Sequence(request, shapes.max_length, lambda _: None)
        sequence.slot, sequence.read = slot, length - 1
        # They may overwrite each other's rows, whose contents do not matter.
        sequence.pages = [(slot * pages + n) % batch.page_count for n in range(pages)]
        batch.begin(sequence)
        sequences.append(sequence)
    return sequences


def _time(batch: Batch, level: Level, rows: int, sequences: list[Sequence]) -> dict[int, float]:
    """Seconds of steps by the size of their trees: the fastest, since disturbances only add."""
    found: dict[int, float] = {}
    for _ in range(_ROUNDS):
        for verified, drafted in batch.shapes.kinds(rows):
            program = batch.program(verified, drafted, level)
            batch.step(sequences, rows, program)  # drafts for the one that is timed
            began = time.perf_counter()
            batch.step(sequences, rows, program)
            seconds = time.perf_counter() - began
            if verified == drafted:
                found[verified] = min(found.get(verified, seconds), seconds)
    return found
