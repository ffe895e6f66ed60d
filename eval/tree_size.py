"""Choosing the tree size from measured cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dart_jax.model import Decoder
from eval.measure import rate
from eval.prompts import Prompt

# Sizes compiled for; on a CPU a small tree wins, on a GPU a large one.
SIZES = (4, 8, 16, 32, 60)


def fastest(
    make: Callable[[int], Decoder],
    batches: Sequence[Sequence[Prompt]],
    *,
    max_new_tokens: int,
    seed: int,
    repeats: int = 3,
    advance: Callable[[], None] = lambda: None,
) -> tuple[int, dict[int, float]]:
    """Times every size on warm-up prompts.

    Args:
      make: a decoder for a number of tree nodes.
      batches: prompts decoded together; none of those that are reported.
      max_new_tokens: per prompt.
      seed: of the target's draws.
      repeats: timed passes a size, after one that compiles; the best counts.
      advance: called after every size.

    Returns:
      The size with the most tokens per second, and each size's rate.
    """
    rates = {}
    for size in SIZES:
        decoder = make(size)

        def timed(decoder: Decoder = decoder) -> float:
            return rate(
                decoder([prompt.tokens for prompt in batch], max_new_tokens, seed)
                for batch in batches
            )

        timed()
        rates[size] = max(timed() for _ in range(repeats))
        advance()
    return max(rates, key=rates.__getitem__), rates
