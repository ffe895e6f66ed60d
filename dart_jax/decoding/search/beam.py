"""The beam search on the device: candidates and an n-gram table give the trees of a batch.

Builds the same trees as the C++ search (native/src/bounded_search.cpp), up to ties: scores may be
rounded differently, and of equal scores the node created first is the better one. As there, nodes
that can no longer enter the tree are left out; but level by level, not one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.search.candidates import UsableCandidates, read_candidates
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.lookup import Lookups, advance_found, look_up, read_context
from dart_jax.decoding.tree import TREE_ROWS
from dart_jax.decoding.vocabulary import exact_top_k
from dart_jax.ngram.device_table import DeviceTable

_NEVER = -np.float32(np.inf)  # the score of a place without a node


class _Level(NamedTuple):
    """Candidates of one level.

    Attributes:
      token: int32 [B, k], see `UsableCandidates`.
      log_p: float32 [B, k]; with pair scores [B, k, k].
      ends: bool [B, k], whether they end a sequence.
      weight: float32 scalar, w.
      start: int32 scalar, the number of the first child of this level among all nodes.
    """

    token: jax.Array
    log_p: jax.Array
    ends: jax.Array
    weight: jax.Array
    start: jax.Array


class _Beam(NamedTuple):
    """Nodes that are extended.

    Attributes:
      score: float32 [B, W]; `_NEVER` in a place without a node.
      candidate: int32 [B, W], the node's place among its level's candidates.
      known: int32 [B, W, order - 1], the n-gram contexts after it, or None without n-grams.
      count: int32 [B], places that are taken, including nodes that were left out.
    """

    score: jax.Array
    candidate: jax.Array
    known: jax.Array | None
    count: jax.Array


class _Best(NamedTuple):
    """The best N nodes so far.

    Attributes:
      score: float32 [B, N], descending; `_NEVER` in a place without a node.
      number: int32 [B, N], in order of creation; see `_Level.start`.
    """

    score: jax.Array
    number: jax.Array


def beam_search(
    table: DeviceTable | None,
    context: jax.Array,
    tokens: jax.Array,
    logits: jax.Array,
    pairs: jax.Array | None,
    *,
    nodes: int,
    eos: tuple[int, ...],
    search: SearchConfig,
) -> jax.Array:
    """Searches the trees of a batch.

    Args:
      table: the n-grams, or None to search with only the drafter's scores.
      context: int32 [B, C], the newest tokens. The last one is the root; a negative one gives a row
        of zeros.
      tokens: int32 [B, d, k], see `read_candidates`.
      logits: float32 [B, d, k].
      pairs: float32 [B, d - 1, k, k], or None.
      nodes: N; static, like all that follows.
      eos: tokens that end a sequence.
      search: parameters.

    Returns:
      int32 [B, 4, N + 1]: the nodes' tokens, parents, depths and the bits of their scores, by
      descending score.
    """
    batch, depth, _ = tokens.shape
    root = context[:, -1]
    if nodes == 0 or depth == 0:
        return _with_root(root, jnp.zeros((batch, TREE_ROWS, nodes), jnp.int32))
    weights = np.array([search.logit_decay**n for n in range(depth)], np.float32)
    candidates = read_candidates(tokens, logits, pairs, weights)
    width = min(search.beam, nodes)
    levels = _levels(candidates, eos, search.level_decay, width)

    def extend(
        beam: _Beam, best: _Best, level: _Level, ngrams: bool = True
    ) -> tuple[_Best, Lookups | None]:
        """Scores the children, and keeps the best nodes."""
        found = None
        if table is not None and beam.known is not None:
            found = look_up(table, beam.known, level.token)
        increment = level.log_p[:, None]
        if level.log_p.ndim == 3:
            increment = jnp.take_along_axis(level.log_p, beam.candidate[..., None], axis=1)
        if found is not None and ngrams:
            increment = increment + found.log_q * np.float32(search.ngram_weight)
        score = beam.score[..., None] + increment * level.weight
        score = jnp.where(increment > _NEVER, score, _NEVER)
        return _keep(best, score, level.start), found

    def follow(
        carry: tuple[_Beam, _Best], level: _Level, ngrams: bool = True
    ) -> tuple[tuple[_Beam, _Best], jax.Array]:
        """Goes on from one level to the next; also returns the numbers of its beam's nodes."""
        beam, best = carry
        best, found = extend(beam, best, level, ngrams)
        place, count = _choose(best, beam, level, search.beam, width)
        beam, number = _next_beam(table, best, level, found, place, count)
        return (beam, best), number

    none = jnp.zeros((batch, 1), jnp.int32)
    known = None if table is None else read_context(table, context)[:, None]
    beam = _Beam(none.astype(jnp.float32), none, known, jnp.ones((batch,), jnp.int32))
    best = _Best(jnp.full((batch, nodes), _NEVER), jnp.zeros((batch, nodes), jnp.int32))
    first, last = (jax.tree.map(lambda x, n=n: x[n], levels) for n in (0, -1))
    parents = jnp.zeros((batch, 0), jnp.int32)
    # The first level has no n-gram term, and no pairs: all rows of their scores are alike.
    if depth == 1:
        best, *_ = extend(beam, best, first, ngrams=False)
    else:
        carry, chosen = follow((beam, best), first, ngrams=False)
        middle = jax.tree.map(lambda x: x[1:-1], levels)
        (beam, best), later = jax.lax.scan(follow, carry, middle)
        best, *_ = extend(beam, best, last)
        parents = jnp.concatenate([chosen[None], later])
        parents = jnp.swapaxes(parents, 0, 1).reshape(batch, -1)
    return _with_root(root, _tree(root, candidates.token, best, parents, width))


def _levels(
    candidates: UsableCandidates, eos: tuple[int, ...], level_decay: float, width: int
) -> _Level:
    """Returns all levels, along the first axis."""
    _, depth, k = candidates.token.shape
    weights = np.array([(n + 1.0) ** -level_decay for n in range(depth)], np.float32)
    starts = np.maximum(k + width * k * np.arange(-1, depth - 1), 0)
    ends = jnp.isin(candidates.token, jnp.array(eos, jnp.int32))
    return _Level(
        jnp.swapaxes(candidates.token, 0, 1),
        jnp.swapaxes(candidates.log_p, 0, 1),
        jnp.swapaxes(ends, 0, 1),
        jnp.asarray(weights),
        jnp.asarray(starts, jnp.int32),
    )


def _keep(best: _Best, score: jax.Array, start: jax.Array) -> _Best:
    """Returns the best N of those so far and the children, the first of which is number `start`."""
    batch, nodes = best.number.shape
    score = jnp.where(score == 0, np.float32(0), score)  # -0 equals 0
    every = jnp.concatenate([best.score, score.reshape(batch, -1)], axis=1)
    value, at = exact_top_k(every, nodes)
    before = jnp.take_along_axis(best.number, jnp.minimum(at, nodes - 1), axis=1)
    return _Best(value, jnp.where(at < nodes, before, start + at - nodes))


def _choose(
    best: _Best, beam: _Beam, level: _Level, most: int, width: int
) -> tuple[jax.Array, jax.Array]:
    """Selects the nodes to extend next from the best ones.

    Of the level's children no others can have descendants in the tree. Those not ending in EOS come
    first, then those that do; each in the order of the best nodes.

    Args:
      best: the best nodes.
      beam: whose children were scored.
      level: that of the children.
      most: places of the beam.
      width: how many of them nodes can take, W.

    Returns:
      Their places among the best nodes, int32 [B, W], N beyond the last; and the beam's places that
      are taken, int32 [B], including children that are not among the best.
    """
    k, nodes = level.token.shape[1], best.number.shape[1]
    usable = level.token >= 0
    new = (best.number >= level.start) & (best.score > _NEVER)
    every = jnp.sum(usable, axis=-1, dtype=jnp.int32) * beam.count
    before = jnp.asarray(np.tri(nodes, k=-1, dtype=np.float32).T)  # [N, N]

    def rank(among: jax.Array) -> jax.Array:
        """Counts those before each, as a product: sums over parts of rows are slow elsewhere."""
        return jnp.dot(among.astype(jnp.float32), before).astype(jnp.int32)

    ending = jnp.sum(usable & level.ends, axis=-1, dtype=jnp.int32) * beam.count
    places = jnp.minimum(every - ending, most)
    ends = jnp.take_along_axis(level.ends, (best.number - level.start) % k, axis=1)
    others, last = new & ~ends, new & ends
    taken = jnp.minimum(jnp.sum(others, axis=-1, dtype=jnp.int32), places)
    at_last = rank(last)
    fits = last & (at_last < jnp.minimum(most - places, ending)[:, None])
    place = jnp.where(fits, taken[:, None] + at_last, width)
    at_first = rank(others)
    place = jnp.where(others & (at_first < places[:, None]), at_first, place)
    wanted = jax.lax.broadcasted_iota(jnp.int32, (1, width, 1), 1)
    number = jax.lax.broadcasted_iota(jnp.int32, (1, 1, nodes), 2)
    chosen = jnp.min(jnp.where(place[:, None] == wanted, number, nodes), axis=-1)
    return chosen, jnp.minimum(every, most)


def _next_beam(
    table: DeviceTable | None,
    best: _Best,
    level: _Level,
    found: Lookups | None,
    place: jax.Array,
    count: jax.Array,
) -> tuple[_Beam, jax.Array]:
    """Returns the nodes at places among the best as a beam, and their numbers, int32 [B, W]."""
    batch, k = level.token.shape
    number = _take(best.number, place, 0)
    child = number - level.start
    candidate = child % k
    known = None
    if table is not None and found is not None:
        own = jnp.take_along_axis(level.token, candidate, axis=1)
        places = [_take(each.reshape(batch, -1), child, -1) for each in found.places]
        known = advance_found(table, own, places)
    return _Beam(_take(best.score, place, _NEVER), candidate, known, count), number


def _take(x: jax.Array, at: jax.Array, fill: float | np.floating) -> jax.Array:
    """Returns the entries of each row of x [B, n] at int32 [B, m]; `fill` beyond the end."""
    return jnp.take_along_axis(x, at, axis=1, mode="fill", fill_value=fill)


def _tree(
    root: jax.Array, token: jax.Array, best: _Best, parents: jax.Array, width: int
) -> jax.Array:
    """Returns the best nodes as a packed tree without its root, int32 [B, 4, N].

    Args:
      root: int32 [B].
      token: int32 [B, d, k], the candidates'.
      best: the nodes.
      parents: int32 [B, (d - 1) W], the numbers of the beams' nodes, from the first level's on.
      width: W.
    """
    k, nodes = token.shape[2], best.number.shape[1]
    used = (best.score > _NEVER) & (root >= 0)[:, None]
    first, later = best.number < k, jnp.maximum(best.number - k, 0)
    level = jnp.where(first, 0, later // (width * k) + 1)
    # The parent's number; the root's is -1.
    above = jnp.pad(parents, ((0, 0), (0, 1)))
    above = jnp.take_along_axis(above, jnp.minimum(later // k, above.shape[1] - 1), axis=1)
    parent = jnp.where(first, -1, above)
    is_parent = parent[..., None] == jnp.where(used, best.number, -2)[:, None]
    number = jax.lax.broadcasted_iota(jnp.int32, (1, 1, nodes), 2) + 1
    place = jnp.sum(jnp.where(is_parent, number, 0), axis=-1, dtype=jnp.int32)
    at = jnp.minimum(level * k + best.number % k, token[0].size - 1)
    own = jnp.take_along_axis(token.reshape(len(token), -1), at, axis=1)
    bits = jax.lax.bitcast_convert_type(best.score, jnp.int32)
    return jnp.where(used[:, None], jnp.stack([own, place, level + 1, bits], axis=1), 0)


def _with_root(root: jax.Array, tree: jax.Array) -> jax.Array:
    """Returns a tree with its root, int32 [B, 4, N + 1]."""
    top = jnp.pad(jnp.maximum(root, 0)[:, None, None], ((0, 0), (0, TREE_ROWS - 1), (0, 0)))
    return jnp.concatenate([top, tree], axis=2)
