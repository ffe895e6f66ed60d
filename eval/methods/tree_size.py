"""Chooses the fastest draft tree by timing several."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dart_jax.engine.decoder import Decoder
from dart_jax.programs.spread import in_turn

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
    batches: Sequence[list[np.ndarray]],
    new_tokens: int,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> dict[Tree, float]:
    """Times trees on warm-up prompts, in turn.

    Args:
      make: returns the decoder for a tree.
      trees: the trees to choose from.
      batches: warm-up prompts, int32 [P] each, preferably none of the reported ones.
      new_tokens: tokens to generate for each prompt.
      seed: seed of sampling.
      advance: called after every pass; there are `1 + REPEATS` per tree, and the first compiles.

    Returns:
      Median seconds of each tree, the fastest first.
    """

    def work(decoder: Decoder) -> None:
        for batch in batches:
            decoder(batch, new_tokens, seed)
        advance()

    times = in_turn({str(tree): partial(work, make(tree)) for tree in trees}, REPEATS)
    medians = {tree: statistics.median(times[str(tree)]) for tree in trees}
    return dict(sorted(medians.items(), key=lambda item: item[1]))
