"""A setting compared with plain decoding; the first difference of two outputs is a tie within
rounding, or shows two different distributions."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.sampling import Sampling, gumbel_noise, row_keys
from eval.lossless.literal_sampling import kept, may_win, scale, scale_rounding
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
      top2: difference of the target's two largest logits.
      rounding: rounding error of a score.
      at_cut: whether, computed exactly, top-k, top-p or min-p cuts one of the two tokens.
      tie: whether rounding can make either token the sampled one.
    """

    prompt: int
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
        """The result in words."""
        if not self.tie:
            return "DIVERGES"
        return "tie at a cut" if self.at_cut else "tie"


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting.

    Attributes:
      method: drafting method.
      sampling: sampling parameters.
      batch_size: prompts decoded together.
      nodes: nodes of the draft trees; 0 for sizes that change at random.
    """

    method: str
    sampling: Sampling
    batch_size: int
    nodes: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One setting compared with plain decoding.

    Attributes:
      case: the setting.
      prompts: number of prompts.
      tokens: tokens that plain decoding generated for them.
      steps: number of verifications.
      divergences: the first difference of every prompt whose outputs differ.
    """

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
    """Compares one row.

    Args:
      prober: computes the target's logits.
      sampling: sampling parameters.
      seed: seed of sampling.
      prompt: index of the prompt.
      row: its row in the batch, which the noise depends on.
      text: int [n], the prompt.
      plain: int [m], new tokens of plain decoding.
      dart: int [m'], new tokens of the drafting method.

    Returns:
      The first difference; None if the rows are equal.
    """
    if np.array_equal(plain, dart):
        return None
    shorter = min(len(plain), len(dart))
    at = int(np.append(plain[:shorter] != dart[:shorter], True).argmax())
    pair = [int(tokens[at]) if at < len(tokens) else ENDED for tokens in (plain, dart)]
    before = np.concatenate([text, plain[:at]])
    probe = prober(before)
    second, first = np.partition(probe.logits, -2)[-2:]
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
        top2=float(first - second),
        rounding=eps,
        at_cut=not ended and not kept(scaled, sampling)[pair].all(),
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
