"""What the loops return, and checks of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from dart_jax.decoding.logits import TokenScores
from dart_jax.errors import UserError


@dataclasses.dataclass(eq=False)
class Generation:
    """The new tokens of a batch, and the steps and time they took.

    Attributes:
      tokens: the new tokens of each row, including the stop id if one was drawn.
      ranks: per row, int, which nodes of the trees drafted them, from the best one, 1, on; 0 for
        the target's own.
      steps: int [B], verifications each row took part in (the prefill does not count).
      seconds: wall time: `prefill`, `device` (draft and verify), `search`, `compile` (JAX's, 0 for
        programs that were used before) and, in the host loop, `host` (the rest); in the fused loop
        the rest is part of `device`.
      scores: what is reported about the new tokens of each row, without the batch axis; None if
        nothing is.
    """

    tokens: list[np.ndarray]
    ranks: list[np.ndarray]
    steps: np.ndarray
    seconds: dict[str, float]
    scores: list[TokenScores] | None = None

    @property
    def drafted(self) -> list[np.ndarray]:
        """Per row, bool, which tokens the drafter proposed; the others are the target's."""
        return [ranks > 0 for ranks in self.ranks]

    @property
    def tau(self) -> np.ndarray:
        """Acceptance length: tokens emitted per verification, bonus token included. Float [B]; nan
        without a verification."""
        emitted = np.array([len(tokens) - 1 for tokens in self.tokens])
        with np.errstate(invalid="ignore"):
            return emitted / self.steps


class Drafts(NamedTuple):
    """What a step verified, for inspection.

    Attributes:
      trees: int32 [B, 3, N + 1], packed (see `dart_jax.decoding.tree`); only roots for plain
        decoding.
      context: int32 [B, 4], the last tokens of each sequence, ending with the root (see
        `HostBuffer`).
      ids: int32 [B, d, k], candidates that the host's search built the trees from; d is 0 if there
        was no search.
      logits: float32 [B, d, k], the candidates' logits.
      pairs: float32 [B, d - 1, k, k], their pair scores (see `Candidates`); [B, 0, k, k] if the
        drafter has none.
    """

    trees: np.ndarray
    context: np.ndarray
    ids: np.ndarray
    logits: np.ndarray
    pairs: np.ndarray


class StepOutput(NamedTuple):
    """What a batch emitted in one step.

    Attributes:
      tokens: the emitted tokens of each row.
      ranks: which nodes drafted the tokens of each row; 0 for the target's own.
      drafts: what was verified; None for the prefill, and if it was not requested.
      scores: what is reported about the tokens of each row, without the batch axis; None if
        nothing is.
    """

    tokens: list[np.ndarray]
    ranks: list[np.ndarray]
    drafts: Drafts | None = None
    scores: list[TokenScores] | None = None

    @property
    def drafted(self) -> np.ndarray:
        """Int [B], the first `drafted` tokens of a row were proposed by the drafter."""
        return np.array([np.count_nonzero(ranks) for ranks in self.ranks])


def collect(steps: list[StepOutput], seconds: dict[str, float]) -> Generation:
    """Joins the steps of a stream, of which the first is the prefill, to a `Generation`."""
    counts = [np.array([len(tokens) > 0 for tokens in step.tokens], int) for step in steps]
    counts[0] = np.zeros_like(counts[0])
    bursts = (
        Generation(step.tokens, step.ranks, count, {}, step.scores)
        for step, count in zip(steps, counts, strict=True)
    )
    return join(list(bursts), seconds)


def join(parts: Sequence[Generation], seconds: dict[str, float]) -> Generation:
    """Joins the parts of a generation, which took so many seconds together."""
    if len(parts) == 1:
        return dataclasses.replace(parts[0], seconds=seconds)
    tokens, ranks = (
        [np.concatenate(row) for row in zip(*rows, strict=True)]
        for rows in ([part.tokens for part in parts], [part.ranks for part in parts])
    )
    scores = None
    if parts[0].scores is not None:
        of_rows = zip(*(part.scores or () for part in parts), strict=True)
        scores = [jax.tree.map(lambda *each: np.concatenate(each), *row) for row in of_rows]
    steps = np.sum([part.steps for part in parts], axis=0)
    return Generation(tokens, ranks, steps, seconds, scores)


def check_numbers(tokens: list[np.ndarray], before: np.ndarray) -> None:
    """Raises UserError if a token was drawn from logits that are NaN.

    Args:
      tokens: new tokens of each row.
      before: int [B], how many new tokens each row had before.
    """
    for row, count in zip(tokens, before, strict=True):
        if len(row) and row[-1] < 0:
            raise UserError(
                f"the target's logits are NaN at new token {count + len(row)} of a text; its "
                "weights, or a logits processor, give numbers that are too large or not numbers"
            )


def rows_of(scores: TokenScores | None, counts: Sequence[int]) -> list[TokenScores] | None:
    """Copies each row's scores to the host, of as many tokens as it has emitted."""
    if scores is None:
        return None
    arrays = jax.tree.map(np.array, scores)  # copies: the state is donated
    return [jax.tree.map(lambda x, n=n: x[n, : counts[n]], arrays) for n in range(len(counts))]
