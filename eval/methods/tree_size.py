"""Chooses the fastest draft tree by timing several."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dart_jax.decoding.decoder import Decoder
from eval.benchmarks.prompts import Prompt
from eval.methods.measure import rate

# Numbers of nodes to choose from: small trees are fastest on a CPU, large ones on a GPU.
SIZES = (1, 2, 4, 8, 16, 32, 60)

# Level decays to choose from: the paper's, tuned for trees of about 60 nodes, and a larger one,
# which makes small trees deeper.
LEVEL_DECAYS = (0.7, 2.5)

# Timed passes per tree.
REPEATS = 3


class Tree(NamedTuple):
    """Parameters of a draft tree.

    Attributes:
      nodes: number of nodes without the root; 0 is plain decoding.
      level_decay: exponent of the tree search's level weight; None without a tree search.
      sizes: numbers of nodes between which decoding changes, beginning with N; empty if all trees
        have N.
    """

    nodes: int
    level_decay: float | None = None
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        decay = "" if self.level_decay is None else f", level decay {self.level_decay:g}"
        return f"{self.size} nodes{decay}"

    @property
    def size(self) -> str:
        """The number of nodes, or its range."""
        return f"0-{self.sizes[-1]}" if self.sizes else str(self.nodes)


def fastest(
    make: Callable[[Tree], Decoder],
    trees: Sequence[Tree],
    batches: Sequence[Sequence[Prompt]],
    *,
    max_new_tokens: int,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> dict[Tree, float]:
    """Times trees on warm-up prompts, in turn, so that a slow moment of the machine affects all.

    Args:
      make: returns the decoder for a tree.
      trees: the trees to choose from.
      batches: warm-up prompts, batch by batch; preferably none of the reported ones.
      max_new_tokens: tokens to generate for each prompt.
      seed: seed of sampling.
      advance: called after every pass; there are `1 + REPEATS` per tree, and the first compiles.

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
    medians = {tree: statistics.median(values[1:]) for tree, values in rates.items()}
    return dict(sorted(medians.items(), key=lambda item: -item[1]))
