"""Compiles all programs before the first request, and times the steps.

It decodes texts that the model has written itself, so that all that a step costs is measured: the
search finds n-grams, and a mixture of experts reads as many of them as it will.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np

from dart_jax.decoding.sampling import Sampling
from dart_jax.serving.batch import Batch
from dart_jax.serving.config import Level, ServingConfig
from dart_jax.serving.request import Request
from dart_jax.serving.scheduling.sequence import Sequence
from dart_jax.serving.tree_size import TreeSizes

# How often steps are timed. All kinds of steps take turns: whatever disturbs the machine meanwhile
# disturbs them alike, and the faster turn of each counts, since disturbances only add to it. In a
# turn the first steps are slower, and are left out.
_ROUNDS, _STEPS, _LEFT_OUT = 2, 12, 6

# Tokens of the sequences, at most; how many texts they consist of, and the tokens of each.
_LENGTH, _TEXTS, _WRITTEN = 160, 4, 48

_OPTIONS: dict[Level, tuple[Sampling, int | None]] = {
    "greedy": (Sampling(), None),
    "sampled": (Sampling(1.0), None),
    "filtered": (Sampling(1.0, top_p=0.9), None),
    "full": (Sampling(), 0),
}


def warm_up(batch: Batch, config: ServingConfig, sizes: TreeSizes) -> Iterator[str]:
    """Runs everything that requests may run, in parts, the most important ones first.

    Requests may run between two parts, but nothing that a part leaves on the device may be used.

    Args:
      batch: without sequences during a part.
      config: says how much.
      sizes: learns what steps cost.

    Yields:
      After every part, what has been done.
    """
    if not config.levels:
        return
    shapes = batch.shapes
    for drafts in {False, shapes.most_nodes > 0}:
        for rows, start in shapes.reads:
            batch.read_tokens(np.zeros(0, np.int32), start, (), rows, drafts=drafts)
            yield "compiled a program that reads prompts"
    todo = sum(map(len, shapes.sizes.values())) * len(shapes.widths)
    done, todo = 0, todo * len(config.levels)
    texts = _write_texts(batch)
    for level in config.levels:
        for rows in shapes.rows:
            for width in shapes.widths:
                for size in shapes.sizes[rows]:
                    sequences = _sequences(batch, texts, level, rows, width)
                    batch.burst(sequences, rows, batch.program(size, level))
                    done += 1
                    yield f"compiled {done} of {todo} programs"
            found: dict[int, float] = {}
            for _ in range(_ROUNDS):
                sequences = _sequences(batch, texts, level, rows, shapes.widths[-1])
                for size, seconds in _time(batch, level, rows, sequences).items():
                    found[size] = min(found.get(size, seconds), seconds)
                yield f"compiled {done} of {todo} programs"
            for size, seconds in found.items():
                sizes.learn_cost(rows, level, size, seconds)


def _write_texts(batch: Batch) -> list[np.ndarray]:
    """Short texts that the model writes after a random token."""
    shapes, program, texts = batch.shapes, batch.program(0, "greedy"), []
    most = min(_WRITTEN, shapes.max_length - 1)
    for first in np.random.default_rng(0).integers(0, batch.vocab_size, (_TEXTS, 1), np.int32):
        sequence = Sequence(Request(first, most), shapes.max_length, lambda _: None)
        sequence.slot, sequence.pages = 0, list(range(shapes.pages_each))
        batch.begin(sequence)
        while sequence.remaining:
            (emitted,) = batch.burst([sequence], shapes.rows[0], program)
            sequence.append(emitted.tokens)
        texts.append(sequence.tokens)
    return texts


def _sequences(
    batch: Batch, texts: list[np.ndarray], level: Level, rows: int, width: int
) -> list[Sequence]:
    """Sequences in the first slots, which use as many columns of their tables as the width."""
    shapes = batch.shapes
    pages = width if shapes.bounded else min(-(-_LENGTH // shapes.page), width)
    length = min(pages * shapes.page, _LENGTH, shapes.max_length - 1)
    sampling, logprobs = _OPTIONS[level]
    sequences = []
    for slot in range(rows):
        tokens = np.roll(np.resize(texts[slot % len(texts)], length), slot)
        request = Request(tokens, 1, sampling, logprobs=logprobs, seed=slot)
        sequence = Sequence(request, shapes.max_length, lambda _: None)
        sequence.slot, sequence.read = slot, length - 1
        # They may overwrite each other's rows, whose contents do not matter.
        sequence.pages = [(slot * pages + n) % batch.page_count for n in range(pages)]
        batch.begin(sequence)
        sequences.append(sequence)
    return sequences


def _time(batch: Batch, level: Level, rows: int, sequences: list[Sequence]) -> dict[int, float]:
    """Seconds of steps by the size of their trees, in one turn of each size."""
    found: dict[int, float] = {}
    for size in batch.shapes.sizes[rows]:
        program, seconds = batch.program(size, level), []
        for _ in range(_STEPS):
            for sequence in sequences:
                sequence.drafts = size > 0
            began = time.perf_counter()
            batch.burst(sequences, rows, program)
            seconds.append(time.perf_counter() - began)
        found[size] = statistics.median(seconds[_LEFT_OUT:])
    return found
