"""What a burst gives: tokens, lessons about drafts, and when its steps were verified."""

from __future__ import annotations

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.paying import AnyArray
from dart_jax.engine.request import Draft


class Lessons(NamedTuple, Generic[AnyArray]):
    """What a burst tells about drafts.

    Attributes:
      outcomes: int32 [n, BINS, 2], see `outcomes_of`.
      expected: float32 [n, N + 1], sums over all trees of the probabilities of verified nodes, by
        place; the root's count the trees.
    """

    outcomes: AnyArray
    expected: AnyArray

    def plus(
        self: Lessons[jax.Array], outcomes: jax.Array, expected: jax.Array, drafted: jax.Array
    ) -> Lessons[jax.Array]:
        """Adds a step.

        Args:
          outcomes: int32 [n, BINS, 2].
          expected: float32 [n, N + 1], probabilities of the nodes that were verified.
          drafted: bool [n], rows with trees.
        """
        expected = jnp.where(drafted[:, None], expected, 0)
        return Lessons(self.outcomes + outcomes, self.expected + expected)


def clock(computed: jax.Array) -> jax.Array:
    """The time when something was computed, on a CPU: microseconds, a uint32 scalar."""
    return jax.ffi.ffi_call("dart_clock", jax.ShapeDtypeStruct((), jnp.uint32))(computed)


class Emitted(NamedTuple):
    """Tokens that a burst gave one sequence.

    Attributes:
      tokens: int32 [n].
      ranks: int32 [n], the places in their trees of the nodes that drafted them; 0 for the target's
        own.
      steps: how many it took part in.
      trees: how many were verified.
      nodes: of these trees, all together.
      ended: whether no more tokens follow.
      scores: what is reported about the tokens, without the axis of rows; None if nothing is.
      draft: what was verified, if that was asked for and anything was drafted.
    """

    tokens: np.ndarray
    ranks: np.ndarray
    steps: int
    trees: int
    nodes: int
    ended: bool
    scores: TokenScores | None
    draft: Draft | None


class Burst(NamedTuple):
    """The result of a burst.

    Attributes:
      emitted: what each sequence got.
      lessons: what it tells about drafts, of all rows together; None if nothing.
      times: uint32 [K, 2], of its steps, see `BurstResult`; None if nobody knows.
    """

    emitted: list[Emitted]
    lessons: Lessons[np.ndarray] | None
    times: np.ndarray | None
