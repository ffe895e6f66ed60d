"""Choosing the draft tree from measured cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dart_jax.model import Decoder
from eval.measure import rate
from eval.prompts import Prompt

# Sizes compiled for; on a CPU a small tree wins, on a GPU a large one.
SIZES = (4, 8, 16, 32, 60)

# Exponents of the search's level weight: the paper's, tuned for 59 nodes, and a larger one, which
# makes small trees deeper.
LEVEL_DECAYS = (0.7, 2.5)


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
    repeats: int = 3,
    advance: Callable[[], None] = lambda: None,
) -> dict[Tree, float]:
    """Times trees on warm-up prompts.

    Args:
      make: a decoder for a tree.
      trees: what to choose from.
      batches: prompts decoded together; none of those that are reported, where there are others.
      max_new_tokens: per prompt.
      seed: of the target's draws.
      repeats: timed passes a tree, after one that compiles; the best counts.
      advance: called after every tree.

    Returns:
      Tokens per second of each tree, the fastest first.
    """
    rates = {}
    for tree in trees:
        decoder = make(tree)

        def timed(decoder: Decoder = decoder) -> float:
            return rate(
                decoder([prompt.tokens for prompt in batch], max_new_tokens, seed)
                for batch in batches
            )

        timed()
        rates[tree] = max(timed() for _ in range(repeats))
        advance()
    return dict(sorted(rates.items(), key=lambda item: -item[1]))
