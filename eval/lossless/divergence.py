"""Where two outputs part: a tie within rounding, or two different distributions."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.sampling import Sampling, gumbel_noise
from eval.lossless.literal_sampling import kept, may_win, scale, scale_rounding
from eval.lossless.rounding import Prober

# Stands for a token where an output had already ended.
ENDED = -1


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first new token in which a row differs.

    Attributes:
      prompt: number of the prompt.
      row: its place in the batch.
      new_token: which new token it is, from 0.
      plain: token id of plain decoding; -1 where it had ended.
      dart: the same of DART.
      margin: how far the two tokens' exact scores lie apart: logits when greedy, else logits over
        temperature with the draw's noise.
      top2: how far the target's two best logits lie apart.
      rounding: how far off a score may be by the way it is computed.
      at_cut: one of the two tokens is cut by top-k, top-p or min-p, exactly computed.
      tie: either token could have won within rounding.
    """

    prompt: int
    row: int
    new_token: int
    plain: int
    dart: int
    margin: float
    top2: float
    rounding: float
    at_cut: bool
    tie: bool

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.tie:
            return "DIVERGES"
        return "tie at a cut" if self.at_cut else "tie"


def first_difference(plain: np.ndarray, dart: np.ndarray) -> int | None:
    """Index of the first new token in which two rows differ; None if they do not."""
    shorter = min(len(plain), len(dart))
    different = np.flatnonzero(plain[:shorter] != dart[:shorter])
    if len(different):
        return int(different[0])
    return None if len(plain) == len(dart) else shorter


def examine(
    prober: Prober,
    sampling: Sampling,
    seed: int,
    *,
    prompt: int,
    row: int,
    text: np.ndarray,
    plain: np.ndarray,
    dart: np.ndarray,
) -> Divergence | None:
    """Compares one row.

    Args:
      prober: of the target.
      sampling: how the target draws.
      seed: of the draws.
      prompt: number of the prompt.
      row: its place in the batch, which the noise depends on.
      text: int [n], the prompt.
      plain: int [m], new tokens of plain decoding.
      dart: int [m'], new tokens of DART.

    Returns:
      None where the rows are the same.
    """
    at = first_difference(plain, dart)
    if at is None:
        return None
    pair = [int(tokens[at]) if at < len(tokens) else ENDED for tokens in (plain, dart)]
    before = np.concatenate([text, plain[:at]])
    probe = prober(before)
    second, first = np.partition(probe.logits, -2)[-2:]
    eps = scale_rounding(probe.rounding, sampling)
    scaled = scale(probe.logits, sampling, before)
    noise = np.zeros_like(scaled)
    if sampling.temperature:
        noise = noise_of(seed, row, len(before), len(scaled))
    score, ended = scaled + noise, ENDED in pair
    return Divergence(
        prompt=prompt,
        row=row,
        new_token=at,
        plain=pair[0],
        dart=pair[1],
        margin=float("inf") if ended else float(abs(score[pair[0]] - score[pair[1]])),
        top2=float(first - second),
        rounding=eps,
        at_cut=not ended and not kept(scaled, sampling)[pair].all(),
        # No rounding makes a sequence end or go on after the same tokens.
        tie=probe.plausible
        and not ended
        and all(may_win(scaled, noise, sampling, token, eps) for token in pair),
    )


def noise_of(seed: int, row: int, position: int, vocab: int) -> np.ndarray:
    """The noise of one draw, float64 [V]: what `sampling.draw` adds there."""
    positions = jnp.full((row + 1, 1), position, jnp.int32)
    return np.asarray(gumbel_noise(jnp.uint32(seed), positions, vocab)[row, 0], np.float64)
