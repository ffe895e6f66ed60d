"""Choosing the draft tree from measured cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dart_jax.decoding.decoder import Decoder
from eval.benchmarks.prompts import Prompt
from eval.methods.measure import rate

# To choose from: on a CPU a small tree wins, on a GPU a large one.
SIZES = (2, 4, 8, 16, 32, 60)

# Exponents of the search's level weight: the paper's, tuned for 59 nodes, and a larger one, which
# makes small trees deeper.
LEVEL_DECAYS = (0.7, 2.5)

# Timed passes a tree.
REPEATS = 3


class Tree(NamedTuple):
    """What can be chosen of a draft tree.

    Attributes:
      nodes: without the root; 0 is plain decoding.
      level_decay: exponent of the search's level weight; None without such a search.
    """

    nodes: int
    level_decay: float | None = None

    def __str__(self) -> str:
        decay = "" if self.level_decay is None else f", level decay {self.level_decay:g}"
        return f"{self.nodes} nodes{decay}"


def fastest(
    make: Callable[[Tree], Decoder],
    trees: Sequence[Tree],
    batches: Sequence[Sequence[Prompt]],
    *,
    max_new_tokens: int,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> dict[Tree, float]:
    """Times trees on warm-up prompts, in turn, so that a slow moment of the machine is no one's.

    Args:
      make: a decoder for a tree.
      trees: what to choose from.
      batches: prompts decoded together; none of those that are reported, where there are others.
      max_new_tokens: per prompt.
      seed: of the target's draws.
      advance: called after every pass, of `1 + REPEATS` a tree; the first compiles.

    Returns:
      Median tokens per second of each tree, the fastest first.
    """
    decoders = {tree: make(tree) for tree in trees}
    rates: dict[Tree, list[float]] = {tree: [] for tree in trees}
    for _ in range(1 + REPEATS):
        for tree, decoder in decoders.items():
            rates[tree].append(
                rate(
                    decoder([prompt.tokens for prompt in batch], max_new_tokens, seed)
                    for batch in batches
                )
            )
            advance()
    medians = {tree: statistics.median(found[1:]) for tree, found in rates.items()}
    return dict(sorted(medians.items(), key=lambda item: -item[1]))
