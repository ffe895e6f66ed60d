"""The beam search on the device: candidates and an n-gram table give the trees of a batch.

Trees equal those of the C++ search (native/src/bounded_search.cpp), ties included: the scores are
computed with the same roundings, and of equal scores the node created first is the better one. As
there, nodes that can no longer enter the tree are left out; but level by level, not one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.search.candidates import Candidates, read_candidates
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.exact_math import product
from dart_jax.decoding.search.lookup import Lookups, advance_found, look_up, read_context
from dart_jax.decoding.top_k import exact_top_k
from dart_jax.ngram.device_table import DeviceTable

_NEVER = -np.float32(np.inf)  # the score of a place without a node


class _Level(NamedTuple):
    """The candidates of one level.

    Attributes:
      token: int32 [B, k], see `Candidates`.
      log_p: float32 [B, k]; with pair scores [B, k, k].
      ends: int32 [B, E], places of those that end a sequence, ascending, k for one that is not
        among them; None if nothing ends a sequence.
      weight: float32 scalar, w.
      start: int32 scalar, the number of the first child of this level among all nodes.
    """

    token: jax.Array
    log_p: jax.Array
    ends: jax.Array | None
    weight: jax.Array
    start: jax.Array


class _Beam(NamedTuple):
    """The nodes that are extended.

    Attributes:
      score: float32 [B, W]; `_NEVER` in a place without a node.
      candidate: int32 [B, W], the node's place among its level's candidates.
      known: int32 [B, W, order - 1], the n-gram contexts after it; None without n-grams.
      count: int32 [B], places that are taken, with those of nodes that were left out.
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
      table: the n-grams; None searches with only the drafter's scores.
      context: int32 [B, C], the newest tokens. The last one is the root; a negative one gives a row
        of zeros.
      tokens: int32 [B, d, k], see `read_candidates`.
      logits: float32 [B, d, k].
      pairs: float32 [B, d - 1, k, k], or None.
      nodes: N; static, like all that follows.
      eos: tokens that end a sequence.
      search: parameters; `ties` must be `first`.

    Returns:
      int32 [B, 3, N + 1]: the nodes' tokens, parents and depths, by descending score.
    """
    batch, depth, _ = tokens.shape
    root = context[:, -1]
    if nodes == 0 or depth == 0:
        return _with_root(root, jnp.zeros((batch, 3, nodes), jnp.int32))
    weights = np.array([search.logit_decay**n for n in range(depth)], np.float32)
    candidates = read_candidates(tokens, logits, pairs, weights)
    levels = _levels(candidates, eos, search)

    def extend(
        beam: _Beam, best: _Best, level: _Level, ngrams: bool = True
    ) -> tuple[_Best, jax.Array, Lookups | None]:
        """Scores the children, and keeps the best nodes."""
        bound, wanted = _bound(beam, best, level)
        found = None
        if table is not None and beam.known is not None:
            found = look_up(table, beam.known, level.token, wanted)
        score = bound
        if found is not None and ngrams:
            score = _score(beam, level, found, search.ngram_weight)
        score = jnp.where(wanted, score, _NEVER)
        return _keep(best, score, level.start, nodes), score, found

    def follow(
        carry: tuple[_Beam, _Best], level: _Level, ngrams: bool = True
    ) -> tuple[tuple[_Beam, _Best], jax.Array]:
        """Goes on from one level to the next; also returns what its beam is among all nodes."""
        beam, best = carry
        best, score, found = extend(beam, best, level, ngrams)
        chosen, count = _choose(score, beam, level, search.beam)
        beam = _next_beam(table, score, level.token, found, chosen, count)
        return (beam, best), chosen + level.start

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
    return _with_root(root, _tree(root, candidates.token, best, parents, search.beam))


def _levels(candidates: Candidates, eos: tuple[int, ...], search: SearchConfig) -> _Level:
    """All levels, along the first axis."""
    _, depth, k = candidates.token.shape
    weights = np.array([(n + 1.0) ** -search.level_decay for n in range(depth)], np.float32)
    starts = np.maximum(k + search.beam * k * np.arange(-1, depth - 1), 0)
    ends = jnp.swapaxes(_places_of(candidates.token, eos), 0, 1) if eos else None
    return _Level(
        jnp.swapaxes(candidates.token, 0, 1),
        jnp.swapaxes(candidates.log_p, 0, 1),
        ends,
        jnp.asarray(weights),
        jnp.asarray(starts, jnp.int32),
    )


def _places_of(token: jax.Array, eos: tuple[int, ...]) -> jax.Array:
    """Where tokens int32 [B, d, k], ascending, are EOS: int32 [B, d, E], ascending; k for none."""
    is_end = token[..., None] == jnp.array(sorted(eos), jnp.int32)[None, None, None]
    number = jax.lax.broadcasted_iota(jnp.int32, (1, 1, token.shape[2], 1), 2)
    return jnp.min(jnp.where(is_end, number, token.shape[2]), axis=2)


def _bound(beam: _Beam, best: _Best, level: _Level) -> tuple[jax.Array, jax.Array]:
    """What the children score at most, with an n-gram probability of 1, float32 [B, W, k]; and
    whether they could be among the best nodes: their own children score no more."""
    score = beam.score[..., None] + product(_increment(beam, level), level.weight)
    score = jnp.where(score == 0, np.float32(0), score)  # -0 equals 0
    return score, score > best.score[:, -1:, None]


def _score(beam: _Beam, level: _Level, found: Lookups, ngram_weight: float) -> jax.Array:
    """The scores of the beam's children, float32 [B, W, k]."""
    increment = _increment(beam, level) + product(found.log_q, np.float32(ngram_weight))
    score = beam.score[..., None] + product(increment, level.weight)
    return jnp.where(score == 0, np.float32(0), score)


def _increment(beam: _Beam, level: _Level) -> jax.Array:
    """The children's log-probabilities under the drafter, float32 [B, W or 1, k]."""
    if level.log_p.ndim == 2:
        return level.log_p[:, None]
    return jnp.take_along_axis(level.log_p, beam.candidate[..., None], axis=1)


def _keep(best: _Best, score: jax.Array, start: jax.Array, nodes: int) -> _Best:
    """The best N of those so far and the children, the first of which is number `start`."""
    batch = len(score)
    every = jnp.concatenate([best.score, score.reshape(batch, -1)], axis=1)
    value, at = exact_top_k(every, nodes)
    before = jnp.take_along_axis(best.number, jnp.minimum(at, nodes - 1), axis=1)
    return _Best(value, jnp.where(at < nodes, before, start + at - nodes))


def _choose(
    score: jax.Array, beam: _Beam, level: _Level, width: int
) -> tuple[jax.Array, jax.Array]:
    """Which children are extended, int32 [B, width], each a number of the W * k: those not ending
    in EOS first, then by score, then by creation. And how many these are, int32 [B], with those
    that can no longer be among the best nodes, which take up places too."""
    batch, parents, k = score.shape
    ends = level.ends
    every = beam.count * jnp.sum(level.token >= 0, axis=-1, dtype=jnp.int32)
    if ends is None:
        return _best(score, width), jnp.minimum(every, width)
    number = jax.lax.broadcasted_iota(jnp.int32, (1, 1, k), 2)
    is_end = jnp.any(ends[..., None] == number, axis=1)
    others = jnp.where(is_end[:, None], _NEVER, score)
    count = beam.count * jnp.sum((level.token >= 0) & ~is_end, axis=-1, dtype=jnp.int32)
    each = jnp.broadcast_to(jnp.minimum(ends, k - 1)[:, None], (batch, parents, ends.shape[1]))
    score = jnp.where(ends[:, None] < k, jnp.take_along_axis(score, each, axis=2), _NEVER)
    before = k * jax.lax.broadcasted_iota(jnp.int32, (1, parents, 1), 1)
    number, nothing = (each + before).reshape(batch, -1), parents * k
    place = jnp.arange(width, dtype=jnp.int32)[None] - count[:, None]
    last = _take(_best(score, width), jnp.maximum(place, 0), nothing)
    chosen = jnp.where(place < 0, _best(others, width), _take(number, last, nothing))
    return chosen, jnp.minimum(every, width)


def _best(score: jax.Array, count: int) -> jax.Array:
    """The numbers of the best children, int32 [B, count], by score and then by number; W * k beyond
    the last one."""
    score = score.reshape(len(score), -1)
    nothing = score.shape[1]
    score = jnp.pad(score, ((0, 0), (0, max(count - nothing, 0))), constant_values=_NEVER)
    value, at = exact_top_k(score, count)
    return jnp.where(value > _NEVER, at, nothing)


def _next_beam(
    table: DeviceTable | None,
    score: jax.Array,
    token: jax.Array,
    found: Lookups | None,
    chosen: jax.Array,
    count: jax.Array,
) -> _Beam:
    """The chosen children as a beam; those beyond the last one give places without a node."""
    batch, _, k = score.shape

    def take(x: jax.Array, fill: float | np.floating) -> jax.Array:
        return _take(x.reshape(batch, -1), chosen, fill)

    candidate = chosen % k
    known = None
    if table is not None and found is not None:
        own = jnp.take_along_axis(token, candidate, axis=1)
        known = advance_found(table, own, [take(place, -1) for place in found.places])
    return _Beam(take(score, _NEVER), candidate, known, count)


def _take(x: jax.Array, at: jax.Array, fill: float | np.floating) -> jax.Array:
    """The entries of each row of x [B, n] at int32 [B, m]; `fill` beyond the end."""
    return jnp.take_along_axis(x, at, axis=1, mode="fill", fill_value=fill)


def _tree(
    root: jax.Array, token: jax.Array, best: _Best, parents: jax.Array, width: int
) -> jax.Array:
    """The best nodes as a packed tree without its root, int32 [B, 3, N].

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
    return jnp.where(used[:, None], jnp.stack([own, place, level + 1], axis=1), 0)


def _with_root(root: jax.Array, tree: jax.Array) -> jax.Array:
    """A tree with its root, int32 [B, 3, N + 1]."""
    top = jnp.pad(jnp.maximum(root, 0)[:, None, None], ((0, 0), (0, 2), (0, 0)))
    return jnp.concatenate([top, tree], axis=2)
