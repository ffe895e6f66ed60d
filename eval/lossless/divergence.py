"""A setting compared with plain decoding; the first difference of two outputs is a tie within
rounding, or shows two different distributions."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.sampling import Sampling, gumbel_noise, row_keys
from eval.lossless.literal_sampling import may_win, scale, scale_rounding
from eval.lossless.rounding import Prober

# The token id of an output that had already ended.
ENDED = -1


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first new token at which a row differs.

    Attributes:
      prompt: index of the prompt.
      new_token: index of the new token.
      plain: token id of plain decoding; -1 if it had ended.
      dart: token id of the drafting method; -1 if it had ended.
      margin: difference of the two tokens' exact scores: logits if greedy, otherwise logits over
        temperature plus noise.
      rounding: rounding error of a score.
      tie: whether rounding can make either token the sampled one.
    """

    prompt: int
    new_token: int
    plain: int
    dart: int
    margin: float
    rounding: float
    tie: bool

    @property
    def verdict(self) -> str:
        """The result in words."""
        return "tie" if self.tie else "DIVERGES"


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting; 0 nodes stand for trees whose sizes change at random."""

    method: str
    sampling: Sampling
    batch_size: int
    nodes: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One setting compared with plain decoding: its prompts, the tokens that plain decoding gave
    them, verifications, and the first difference of every prompt whose outputs differ."""

    case: Case
    prompts: int
    tokens: int
    steps: int
    divergences: list[Divergence]

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus token included."""
        return (self.tokens - self.prompts) / max(1, self.steps)


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
    """Returns the first difference of one row; None if there is none.

    Args:
      prober: computes the target's logits.
      sampling: how tokens were drawn.
      seed: of that.
      prompt: index of the prompt.
      row: its row in the batch, which the noise depends on.
      text: int [n], the prompt.
      plain: int [m], new tokens of plain decoding.
      dart: int [m'], new tokens of the drafting method.
    """
    if np.array_equal(plain, dart):
        return None
    shorter = min(len(plain), len(dart))
    at = int(np.append(plain[:shorter] != dart[:shorter], True).argmax())
    pair = [int(tokens[at]) if at < len(tokens) else ENDED for tokens in (plain, dart)]
    before = np.concatenate([text, plain[:at]])
    probe = prober(before)
    eps = scale_rounding(probe.rounding, sampling)
    scaled = scale(probe.logits, sampling, before)
    noise = np.zeros_like(scaled)
    if sampling.temperature:
        noise = noise_at(seed, row, len(before), len(scaled))
    score, ended = scaled + noise, ENDED in pair
    return Divergence(
        prompt=prompt,
        new_token=at,
        plain=pair[0],
        dart=pair[1],
        margin=float("inf") if ended else float(abs(score[pair[0]] - score[pair[1]])),
        rounding=eps,
        # Rounding cannot decide whether a sequence ends after the same tokens.
        tie=probe.plausible
        and not ended
        and all(may_win(scaled, noise, sampling, token, eps) for token in pair),
    )


def noise_at(seed: int, row: int, position: int, vocab: int) -> np.ndarray:
    """Returns the noise that `sampling.draw` adds at one position, float64 [V]."""
    keys = row_keys(jnp.uint32(seed), jnp.full((1,), row, jnp.int32))
    positions = jnp.full((1, 1), position, jnp.int32)
    return np.asarray(gumbel_noise(keys, positions, vocab)[0, 0], np.float64)
