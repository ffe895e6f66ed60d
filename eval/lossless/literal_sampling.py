"""What a sampler must do, written down once more: float64, sorts, nothing of `dart_jax.decoding.sampling`.

Logits are known up to rounding. So besides what a filter does to them, there is what it could do
if each were off by at most `eps`; logits here are already divided by the temperature, and `eps`
with them.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from dart_jax.decoding.sampling import Sampling


def scale(logits: np.ndarray, sampling: Sampling, known: np.ndarray) -> np.ndarray:
    """Logits [V] after repetition penalty and temperature, float64 [V].

    Args:
      logits: of one position.
      sampling: how the target draws; at temperature 0 nothing is divided.
      known: int [n], the tokens before the position.
    """
    scaled = logits.astype(np.float64)
    if sampling.repetition_penalty != 1:
        before = np.unique(known)
        at = scaled[before]
        penalty = sampling.repetition_penalty
        scaled[before] = np.where(at < 0, at * penalty, at / penalty)
    return scaled / (sampling.temperature or 1.0)


def scale_rounding(rounding: float, sampling: Sampling) -> float:
    """How far off `scale` may be where logits are off by up to `rounding`."""
    penalty = max(sampling.repetition_penalty, 1 / sampling.repetition_penalty)
    return rounding * penalty / (sampling.temperature or 1.0)


def kept(scaled: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Which tokens top-k, top-p and min-p leave, in this order: bool [V].

    Tokens tied with the last one kept are kept too.
    """
    left = scaled.copy()
    if sampling.temperature == 0:
        return np.ones(len(left), bool)
    if sampling.top_k:
        least = np.sort(left)[-min(sampling.top_k, len(left))]
        left[left < least] = -np.inf
    if sampling.top_p < 1:
        p = softmax(left)
        order = np.argsort(-p, kind="stable")
        likelier = np.cumsum(p[order]) - p[order]
        left[p < p[order][likelier < sampling.top_p].min()] = -np.inf
    if sampling.min_p > 0:
        p = softmax(left)
        left[p < sampling.min_p * p.max()] = -np.inf
    return left > -np.inf


def may_be_kept(scaled: np.ndarray, sampling: Sampling, token: int, eps: float) -> bool:
    """Whether the filters could leave a token: it and all below lifted, all above lowered."""
    level = scaled[token] + eps
    above = scaled > level + eps
    moved = np.where(above, scaled - eps, np.minimum(scaled + eps, level))
    return bool(kept(moved, sampling)[token])


def may_be_cut(scaled: np.ndarray, sampling: Sampling, token: int, eps: float) -> bool:
    """Whether the filters could cut a token: it and all below lowered, all others lifted."""
    level = scaled[token] - eps
    moved = np.where(scaled >= level - eps, scaled + eps, scaled - eps)
    moved[token] = level
    return not kept(moved, sampling)[token]


def edge(scaled: np.ndarray, sampling: Sampling, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that are left however the logits are rounded, and those that may be: bool [V] each."""
    order = np.argsort(-scaled, kind="stable")
    places = range(len(order))
    # Where a token may be cut, so may every less likely one.
    cut = bisect_left(places, True, key=lambda i: may_be_cut(scaled, sampling, order[i], eps))
    gone = bisect_left(places, True, key=lambda i: not may_be_kept(scaled, sampling, order[i], eps))
    always, maybe = np.zeros((2, len(order)), bool)
    always[order[:cut]] = True
    maybe[order[:gone]] = True
    return always, maybe


def may_win(
    scaled: np.ndarray, noise: np.ndarray, sampling: Sampling, token: int, eps: float
) -> bool:
    """Whether a token could be the one drawn, given the draw's noise.

    It must be kept, and every token that leads it by more than rounding must be cut.
    """
    score = scaled + noise
    rivals = np.flatnonzero((score > score[token] + 2 * eps) & kept(scaled, sampling))
    return may_be_kept(scaled, sampling, token, eps) and all(
        may_be_cut(scaled, sampling, int(rival), eps) for rival in rivals
    )


def softmax(x: np.ndarray) -> np.ndarray:
    """Of a vector."""
    weights = np.exp(x - x.max())
    return weights / weights.sum()
