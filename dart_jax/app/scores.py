"""The tree search's scores of its nodes, recomputed for display."""

from __future__ import annotations

import dataclasses

import numpy as np

from dart_jax.app.answer import Verified
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.ngram import NgramModel

_EPS = 1e-10


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of one node (docs/method.md, section 3).

    Attributes:
      drafter: the drafter's probability among the candidates of the node's level, after its parent.
      ngram: the n-gram model's probability of the token; None where it does not count.
      total: the search's score of the path, by which nodes are chosen; at most 0.
    """

    drafter: float
    ngram: float | None
    total: float


def scores(step: Verified, search: SearchConfig, ngram: NgramModel | None) -> list[Score | None]:
    """Returns the scores of a step's nodes; None for the root, unused places and nodes of levels
    without candidates on the host."""
    tokens, parents, depths = step.tree.tolist()
    found: list[Score | None] = [None] * len(tokens)
    paths = {0: [int(token) for token in step.context]}
    for node in range(1, len(tokens)):
        level = depths[node] - 1
        if not 0 <= level < len(step.ids):
            continue
        parent = found[parents[node]]
        paths[node] = [*paths[parents[node]], tokens[node]]
        drafter = _probability(step, level, tokens[node], tokens[parents[node]])
        gain, seen = search.logit_decay**level * np.log(drafter + _EPS), None
        if ngram is not None and level:
            seen = float(ngram.probabilities(paths[parents[node]], [tokens[node]])[0])
            gain += search.ngram_weight * np.log(seen + _EPS)
        gain = min(float(gain) * (level + 1) ** -search.level_decay, 0.0)
        found[node] = Score(drafter, seen, (parent.total if parent else 0.0) + gain)
    return found


def _probability(step: Verified, level: int, token: int, parent: int) -> float:
    """The drafter's probability of a token among the candidates of its level, after its parent."""
    ids, logits = step.ids[level], step.logits[level]
    if level and len(step.pairs):
        before = np.where(step.ids[level - 1] == parent, step.logits[level - 1], -np.inf)
        logits = logits + step.pairs[level - 1, before.argmax()]
    weights = np.exp(logits - logits.max(initial=-np.inf, where=np.isfinite(logits)))
    weights = np.where(np.isfinite(logits), weights, 0.0)
    return float(weights[ids == token].sum() / weights.sum())
