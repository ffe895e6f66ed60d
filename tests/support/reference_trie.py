"""Writes files in the reference implementation's trie format, any order of ids and children."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def encode(
    order: int,
    token: NDArray[np.integer],
    parent: NDArray[np.integer],
    count: NDArray[np.integer],
    rng: np.random.Generator,
) -> bytes:
    """The file of nodes 0 .. n - 1, each by its id; the children of each node in random order."""
    nodes = len(token)
    # All fields are 32 or 64 bits wide: the file as an array of 32-bit words.
    children = np.bincount(parent[1:], minlength=nodes)
    records = 4 + np.concatenate([[0], np.cumsum(6 + 3 * children)])
    words = np.zeros(records[-1], np.uint32)
    words[0], words[2] = order, nodes
    begin = records[:-1]
    words[begin] = token
    words[begin + 1] = parent
    words[begin + 3] = count.astype(np.int32).view(np.uint32)
    words[begin + 4] = children
    child = rng.permutation(nodes - 1) + 1
    child = child[np.argsort(parent[child], kind="stable")]
    rank = np.arange(nodes - 1) - np.repeat(np.cumsum(children) - children, children)
    place = begin[parent[child]] + 6 + 3 * rank
    words[place] = token[child]
    words[place + 1] = child
    return words.tobytes()


def encode_counts(
    counts: Mapping[tuple[int, ...], int], order: int, rng: np.random.Generator
) -> bytes:
    """The file of n-grams, given with all their prefixes, in random order."""
    grams = list(counts)
    node = dict(zip([(), *grams], [0, *(rng.permutation(len(grams)) + 1).tolist()], strict=True))
    token, parent, count = np.zeros((3, len(node)), np.int64)
    for gram in grams:
        token[node[gram]] = gram[-1]
        parent[node[gram]] = node[gram[:-1]]
        count[node[gram]] = counts[gram]
    count[0] = sum(counts[gram] for gram in grams if len(gram) == 1)
    return encode(order, token, parent, count, rng)
