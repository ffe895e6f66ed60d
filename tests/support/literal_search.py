"""The tree search by its formulas: every node is scored, and nothing is optimised."""

import exact_math
import numpy as np

f32 = np.float32


def paths(tree):
    """The token path from the root to each node, in the tree's order."""
    token, parent, depth, *_ = tree
    result = [(int(token[0]),)]
    for i in range(1, np.count_nonzero(depth) + 1):
        result.append((*result[parent[i]], int(token[i])))
    return result


def softmax(logits):
    if not logits:
        return []
    with np.errstate(over="ignore"):
        differences = np.array(logits, f32) - max(logits)
    unnormalised = exact_math.exponential(differences)
    return [*(unnormalised * exact_math.reciprocal(exact_math.sum_in_halves(unnormalised)))]


def transcribe(
    model,
    context,
    tokens,
    logits,
    pairs=None,
    *,
    nodes,
    beam=20,
    eos=(),
    level_decay=0.7,
    logit_decay=0.9,
    ngram_weight=0.5,
    eps=1e-10,
):
    """One row's tree by the formulas of docs/method.md, in float32 and without optimisations.

    Returns the paths and their scores.
    """
    eps, ngram_weight = f32(eps), f32(ngram_weight)
    root = (int(context[-1]),)
    pool = []  # (score, path, place in its level's drafts), in order of creation
    entries = [(f32(0), root, 0)]
    for level, (level_tokens, level_logits) in enumerate(zip(tokens, logits, strict=True)):
        level_weight, logit_weight = f32((level + 1.0) ** -level_decay), f32(logit_decay**level)
        usable = [
            (t, x, place)
            for place, (t, x) in enumerate(zip(level_tokens.tolist(), level_logits, strict=True))
            if t >= 0 and np.isfinite(x)
        ]
        # One entry per token, with its highest logit, by ascending token.
        usable.sort(key=lambda candidate: (*candidate[:2], -candidate[2]))
        usable = list({candidate[0]: candidate for candidate in usable}.values())
        p = softmax([x for _, x, _ in usable])
        children = []
        for score, path, parent in entries:
            seen = [f32(0)] * len(usable)
            if model is not None and level > 0:
                seen = model.probabilities([*context[:-1], *path], [t for t, _, _ in usable])
            if pairs is not None and level > 0:
                row = pairs[level - 1, parent]
                p = softmax([with_pair(x, row[place]) for _, x, place in usable])
            for (token, _, place), likely, q in zip(usable, p, seen, strict=True):
                increment = min(exact_math.logarithm(likely + eps), f32(0)) * logit_weight
                if model is not None and level > 0:
                    increment += min(exact_math.logarithm(q + eps), f32(0)) * ngram_weight
                children.append((score + level_weight * increment, (*path, token), place))
        pool += children
        entries = sorted(children, key=lambda child: (child[1][-1] in eos, -child[0]))[:beam]
    best = sorted(pool, key=lambda child: -child[0])[:nodes]
    return [root, *(path for _, path, _ in best)], [f32(0), *(score for score, _, _ in best)]


def with_pair(logit, pair):
    """A logit and a pair score; one that is not finite counts as 0."""
    with np.errstate(over="ignore"):
        largest = np.finfo(f32).max
        return np.clip(logit + pair, -largest, largest) if np.isfinite(pair) else logit
