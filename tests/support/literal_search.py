"""The tree search by its formulas: every node is scored, in float64, and nothing is optimised.

Searches round otherwise, so they may decide otherwise between nodes of almost equal scores.
`check_tree` accepts every tree that such decisions lead to, and no other.
"""

import dataclasses

import numpy as np

EPS = 1e-10


def paths(tree):
    """The token path from the root to each node, in the tree's order."""
    token, parent, depth, *_ = tree
    result = [(int(token[0]),)]
    for i in range(1, np.count_nonzero(depth) + 1):
        result.append((*result[parent[i]], int(token[i])))
    return result


@dataclasses.dataclass(frozen=True)
class Node:
    """A scored node.

    Attributes:
      score: float.
      path: tokens from the root on.
      place: in its level's drafts.
      certain: whether every search scores it, whatever it decides between almost equal nodes.
    """

    score: float
    path: tuple[int, ...]
    place: int
    certain: bool


class TooManyTiesError(Exception):
    """Too many trees are right."""


def log_softmax(logits):
    """log(p + eps), at most 0."""
    with np.errstate(over="ignore"):
        p = np.exp(logits - logits.max())
    return np.minimum(np.log(p / p.sum() + EPS), 0)


def all_nodes(
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
):
    """All nodes that a search of one row may score (docs/method.md), the root first, in order of
    creation; and how far apart scores are that it may order as it likes."""
    near = 2e-6 * (1 + ngram_weight)
    root = Node(0.0, (int(context[-1]),), 0, True)
    pool, entries = [root], [root]
    for level, (level_tokens, level_logits) in enumerate(zip(tokens, logits, strict=True)):
        level_weight, logit_weight = (level + 1.0) ** -level_decay, logit_decay**level
        usable = [
            (t, x, place)
            for place, (t, x) in enumerate(zip(level_tokens.tolist(), level_logits, strict=True))
            if t >= 0 and np.isfinite(x)
        ]
        # One entry per token, with its highest logit, by ascending token.
        usable.sort(key=lambda candidate: (*candidate[:2], -candidate[2]))
        usable = list({candidate[0]: candidate for candidate in usable}.values())
        if not usable:
            break
        followers = [t for t, _, _ in usable]
        own = np.array([x for _, x, _ in usable], np.float64)
        children = []
        for entry in entries:
            every = own
            if pairs is not None and level > 0:
                row = pairs[level - 1, entry.place]
                every = np.array([with_pair(x, row[place]) for _, x, place in usable], np.float64)
            increment = log_softmax(every) * logit_weight
            if model is not None and level > 0:
                q = model.probabilities([*context[:-1], *entry.path], followers)
                increment += np.minimum(np.log(q.astype(np.float64) + EPS), 0) * ngram_weight
            for (token, _, place), more in zip(usable, increment, strict=True):
                score = entry.score + level_weight * float(more)
                children.append(Node(score, (*entry.path, token), place, entry.certain))
        pool += children
        entries = _beam(children, beam, eos, near)
    return pool, near


def _beam(children, beam, eos, near):
    """The nodes that may be extended; certain are those that must."""
    score = np.array([node.score for node in children])
    ends = np.array([node.path[-1] in eos for node in children])
    certain = np.array([node.certain for node in children])
    created = np.arange(len(children))
    slack = (near + 1e-5 * np.abs(score))[:, None]
    # Equal scores are equal in all searches: the node created first is better.
    tied = (score == score[:, None]) & (created < created[:, None])
    alike, first = ends == ends[:, None], ends < ends[:, None]

    def before(slack):
        """For each node, the nodes that come before it if scores may differ by so much."""
        return first | (
            alike & (tied | (score + slack > score[:, None]) & (score != score[:, None]))
        )

    may = (before(-slack) & certain).sum(axis=1) < beam
    must = certain & (before(slack).sum(axis=1) < beam)
    if may.sum() > 3 * beam:
        raise TooManyTiesError
    ranked = np.lexsort((created, -score, ends))  # their children are created in this order
    return [dataclasses.replace(children[i], certain=bool(must[i])) for i in ranked[may[ranked]]]


def check_tree(tree, model, context, tokens, logits, pairs=None, **config):
    """Raises AssertionError unless a tree, int32 [3 or 4, N + 1], is one that the formulas allow;
    see `all_nodes`.

    Raises:
      TooManyTiesError: too many are.
    """
    pool, near = all_nodes(model, context, tokens, logits, pairs, **config)
    by_path = {node.path: node for node in pool}
    found = paths(tree)
    assert len(set(found)) == len(found), "a node twice"
    assert [len(path) - 1 for path in found] == tree[2, : len(found)].tolist(), "another depth"
    assert not tree[:, len(found) :].any(), "something in unused places"
    assert set(found) <= by_path.keys(), "a node that no beam leads to"
    expected = np.array([by_path[path].score for path in found])
    assert (np.diff(expected) <= 2 * near + 1e-5 * np.abs(expected[1:])).all(), "out of order"
    if len(tree) > 3:
        scores = tree[3, : len(found)].view(np.float32)
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=near)
    most = min(config["nodes"] + 1, sum(node.certain for node in pool))
    assert len(found) >= most, "too few nodes"
    assert len(found) <= config["nodes"] + 1
    if len(found) == config["nodes"] + 1:
        least = expected.min() + near + 1e-5 * abs(expected.min())
        better = {node.path for node in pool if node.certain and node.score > least}
        assert better <= set(found), "better nodes are left out"


def with_pair(logit, pair):
    """A logit and a pair score; one that is not finite counts as 0."""
    with np.errstate(over="ignore"):
        largest = np.finfo(np.float32).max
        return np.clip(logit + pair, -largest, largest) if np.isfinite(pair) else logit
