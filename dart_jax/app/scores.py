"""The tree search's scores of its nodes, recomputed for display."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.request import Draft
from dart_jax.ngram import NgramModel

_EPS = 1e-10


class Score(NamedTuple):
    """The score of one node (docs/method.md, section 3).

    Attributes:
      drafter: the drafter's probability among the candidates of the node's level, after its parent.
      ngram: the n-gram model's probability of the token; None where it does not count.
      total: the search's score of the path, by which nodes are chosen; at most 0.
    """

    drafter: float
    ngram: float | None
    total: float


def scores(draft: Draft, search: SearchConfig, ngram: NgramModel | None) -> list[Score | None]:
    """Returns the scores of a draft's nodes; None for the root, unused places and nodes of levels
    without candidates on the host."""
    tokens, parents, depths = draft.tree.tolist()
    totals: list[Score | None] = [None] * len(tokens)
    paths = {0: [int(token) for token in draft.context]}
    for node in range(1, len(tokens)):
        level = depths[node] - 1
        if not 0 <= level < len(draft.ids):
            continue
        parent = totals[parents[node]]
        paths[node] = [*paths[parents[node]], tokens[node]]
        drafter = _probability(draft, level, tokens[node], tokens[parents[node]])
        gain, after = search.logit_decay**level * np.log(drafter + _EPS), None
        if ngram is not None and level:
            after = float(ngram.probabilities(paths[parents[node]], [tokens[node]])[0])
            gain += search.ngram_weight * np.log(after + _EPS)
        gain = min(float(gain) * (level + 1) ** -search.level_decay, 0.0)
        totals[node] = Score(drafter, after, (parent.total if parent else 0.0) + gain)
    return totals


def _probability(draft: Draft, level: int, token: int, parent: int) -> float:
    """Returns the drafter's probability of a token among its level's candidates, after a parent."""
    ids, logits = draft.ids[level], draft.logits[level]
    if level and len(draft.pairs):
        before = np.where(draft.ids[level - 1] == parent, draft.logits[level - 1], -np.inf)
        logits = logits + draft.pairs[level - 1, before.argmax()]
    weights = np.exp(logits - logits.max(initial=-np.inf, where=np.isfinite(logits)))
    weights = np.where(np.isfinite(logits), weights, 0.0)
    return float(weights[ids == token].sum() / weights.sum())
