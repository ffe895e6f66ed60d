"""An independent float64 sampler: sorts, and nothing from `dart_jax.decoding.sampling`.

Logits are exact only up to rounding. So besides what a filter does to them, there is what it could
do if each were off by at most `eps`. Here logits and `eps` are already divided by the temperature.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from dart_jax.decoding.options import Sampling


def scale(logits: np.ndarray, sampling: Sampling, context: np.ndarray) -> np.ndarray:
    """Returns logits, [V], after a repetition penalty for the tokens before, int [n], and division
    by the temperature unless it is 0: float64 [V]."""
    scaled = logits.astype(np.float64)
    if sampling.repetition_penalty != 1:
        before = np.unique(context)
        at = scaled[before]
        penalty = sampling.repetition_penalty
        scaled[before] = np.where(at < 0, at * penalty, at / penalty)
    return scaled / (sampling.temperature or 1.0)


def scale_rounding(rounding: float, sampling: Sampling) -> float:
    """Returns the largest error of `scale` if logits are off by at most `rounding`."""
    penalty = max(sampling.repetition_penalty, 1 / sampling.repetition_penalty)
    return rounding * penalty / (sampling.temperature or 1.0)


def kept(scaled: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Returns which tokens remain after top-k, top-p and min-p, in this order, with those tied with
    the last: bool [V]."""
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
    """Returns whether the filters could keep a token: raise it and all below, lower all above."""
    level = scaled[token] + eps
    above = scaled > level + eps
    shifted = np.where(above, scaled - eps, np.minimum(scaled + eps, level))
    return bool(kept(shifted, sampling)[token])


def may_be_cut(scaled: np.ndarray, sampling: Sampling, token: int, eps: float) -> bool:
    """Returns whether the filters could cut a token: lower it and all below, raise all others."""
    level = scaled[token] - eps
    shifted = np.where(scaled >= level - eps, scaled + eps, scaled - eps)
    shifted[token] = level
    return not kept(shifted, sampling)[token]


def edge(scaled: np.ndarray, sampling: Sampling, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns which tokens are kept with any rounding, and which may be kept: bool [V] each."""
    order = np.argsort(-scaled, kind="stable").tolist()
    places = range(len(order))
    # If a token may be cut, so may every less likely one.
    cut = bisect_left(places, True, key=lambda i: may_be_cut(scaled, sampling, order[i], eps))
    gone = bisect_left(places, True, key=lambda i: not may_be_kept(scaled, sampling, order[i], eps))
    always, maybe = np.zeros((2, len(order)), bool)
    always[order[:cut]] = True
    maybe[order[:gone]] = True
    return always, maybe


def may_win(
    scaled: np.ndarray, noise: np.ndarray, sampling: Sampling, token: int, eps: float
) -> bool:
    """Returns whether a token could be the sampled one, given the noise: whether it may be kept,
    and every token ahead of it by more than the rounding error may be cut."""
    score = scaled + noise
    rivals = np.flatnonzero((score > score[token] + 2 * eps) & kept(scaled, sampling))
    return may_be_kept(scaled, sampling, token, eps) and all(
        may_be_cut(scaled, sampling, int(rival), eps) for rival in rivals
    )


def softmax(x: np.ndarray) -> np.ndarray:
    """Returns the softmax of a vector."""
    weights = np.exp(x - x.max())
    return weights / weights.sum()
