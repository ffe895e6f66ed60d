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
      drafted: per row, bool, which of them the drafter proposed; the others are the target's.
      steps: int [B], verifications each row took part in (the prefill does not count).
      seconds: wall time: `prefill`, `device` (draft and verify), `search`, `compile` (JAX's, 0 for
        programs that were used before) and, in the host loop, `host` (the rest); in the fused loop
        the rest is part of `device`.
      scores: what is reported about the new tokens of each row, without the batch axis; None if
        nothing is.
    """

    tokens: list[np.ndarray]
    drafted: list[np.ndarray]
    steps: np.ndarray
    seconds: dict[str, float]
    scores: list[TokenScores] | None = None

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
      drafted: int [B], the first `drafted` tokens of a row were proposed by the drafter.
      drafts: what was verified; None for the prefill, and if it was not requested.
      scores: what is reported about the tokens of each row, without the batch axis; None if
        nothing is.
    """

    tokens: list[np.ndarray]
    drafted: np.ndarray
    drafts: Drafts | None = None
    scores: list[TokenScores] | None = None


def collect(steps: list[StepOutput], seconds: dict[str, float]) -> Generation:
    """Joins the steps of a stream to a `Generation`."""
    rows = list(zip(*(step.tokens for step in steps), strict=True))
    drafted = [
        np.concatenate([np.arange(len(step.tokens[n])) < step.drafted[n] for step in steps])
        for n in range(len(rows))
    ]
    verifications = np.array([sum(len(tokens) > 0 for tokens in row[1:]) for row in rows])
    scores = None
    if steps[0].scores is not None:
        of_rows = zip(*(step.scores or () for step in steps), strict=True)
        scores = [jax.tree.map(lambda *parts: np.concatenate(parts), *row) for row in of_rows]
    tokens = [np.concatenate(row) for row in rows]
    return Generation(tokens, drafted, verifications, seconds, scores)


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
