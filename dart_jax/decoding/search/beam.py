"""The beam search on the device: candidates and an n-gram table give the trees of a batch.

Trees equal those of the C++ search (native/src/bounded_search.cpp), ties included: the scores are
computed with the same roundings, and of equal scores the node created first is the better one. This
search scores all children of the beam, level by level, where the C++ one leaves out those that can
no longer enter the tree.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.search.candidates import read_candidates
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
    """

    token: jax.Array
    log_p: jax.Array
    ends: jax.Array | None
    weight: jax.Array


class _Beam(NamedTuple):
    """The nodes that are extended.

    Attributes:
      score: float32 [B, W]; `_NEVER` in a place without a node.
      candidate: int32 [B, W], the node's place among its level's candidates.
      known: int32 [B, W, order - 1], the n-gram contexts after it; None without n-grams.
    """

    score: jax.Array
    candidate: jax.Array
    known: jax.Array | None


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
    batch, depth, k = tokens.shape
    weights = np.array([search.logit_decay**n for n in range(depth)], np.float32)
    token, log_p = read_candidates(tokens, logits, pairs, weights)
    ends = None
    if eos:  # their places by ascending token, so that they are in order of creation
        is_end = token[..., None] == jnp.array(sorted(eos), jnp.int32)[None, None, None]
        number = jax.lax.broadcasted_iota(jnp.int32, (1, 1, k, 1), 2)
        ends = jnp.min(jnp.where(is_end, number, k), axis=2)
    weights = np.array([(n + 1.0) ** -search.level_decay for n in range(depth)], np.float32)
    by_level = [None if x is None else jnp.swapaxes(x, 0, 1) for x in (token, log_p, ends)]
    levels = _Level(*by_level, jnp.asarray(weights))
    width = min(search.beam, k ** max(depth - 1, 1))

    def extend(beam: _Beam, level: _Level, ngrams: bool = True) -> tuple[_Beam, tuple]:
        found = None
        if table is not None:
            found = look_up(table, beam.known, level.token)
        score = _score(beam, level, found if ngrams else None, search)
        chosen = _choose(score, level.ends, width)
        return _next_beam(table, score, level.token, found, chosen), (score, chosen)

    # The first level has no pairs, so all rows of pair scores are alike, and no n-gram term.
    none = jnp.zeros((batch, 1), jnp.int32)
    known = None if table is None else read_context(table, context)[:, None]
    root = _Beam(jnp.zeros((batch, 1), jnp.float32), none, known)
    beam, (score, chosen) = extend(root, jax.tree.map(lambda x: x[0], levels), ngrams=False)
    scores, parents = score.reshape(batch, -1), chosen[:, :0]
    if depth > 1:
        _, (more, chosen_later) = jax.lax.scan(extend, beam, jax.tree.map(lambda x: x[1:], levels))
        more = jnp.swapaxes(more, 0, 1).reshape(batch, -1)
        starts = k + width * k * np.arange(depth - 2, dtype=np.int32)
        later = chosen_later[:-1] + starts[:, None, None]
        parents = jnp.concatenate([chosen[None], later])
        parents = jnp.swapaxes(parents, 0, 1).reshape(batch, -1)
        scores = jnp.concatenate([scores, more], axis=1)
    return _tree(context[:, -1], token, scores, parents, width, nodes)


def _score(beam: _Beam, level: _Level, found: Lookups | None, search: SearchConfig) -> jax.Array:
    """The scores of the beam's children, float32 [B, W, k]."""
    increment = level.log_p
    if increment.ndim == 3:
        increment = jnp.take_along_axis(increment, beam.candidate[..., None], axis=1)
    else:
        increment = increment[:, None]
    if found is not None:
        increment += product(found.log_q, np.float32(search.ngram_weight))
    score = beam.score[..., None] + product(increment, level.weight)
    return jnp.where(score == 0, np.float32(0), score)  # -0 equals 0


def _choose(score: jax.Array, ends: jax.Array | None, width: int) -> jax.Array:
    """Which children are extended, int32 [B, width], each a number of the W * k: those not ending
    in EOS first, then by score, then by creation."""
    batch, parents, k = score.shape
    if ends is None:
        return _best(score, width)
    number = jax.lax.broadcasted_iota(jnp.int32, (1, 1, k), 2)
    is_end = jnp.any(ends[..., None] == number, axis=1)
    others = jnp.where(is_end[:, None], _NEVER, score)
    # How many of these there are: after each parent there are as many.
    count = jnp.max(jnp.sum(others > _NEVER, axis=-1, dtype=jnp.int32), axis=-1)
    count *= jnp.sum(jnp.max(score, axis=-1) > _NEVER, axis=-1, dtype=jnp.int32)
    each = jnp.broadcast_to(jnp.minimum(ends, k - 1)[:, None], (batch, parents, ends.shape[1]))
    score = jnp.where(ends[:, None] < k, jnp.take_along_axis(score, each, axis=2), _NEVER)
    before = k * jax.lax.broadcasted_iota(jnp.int32, (1, parents, 1), 1)
    nothing = parents * k
    number = jnp.where(score > _NEVER, each + before, nothing).reshape(batch, -1)
    place = jnp.arange(width, dtype=jnp.int32)[None] - count[:, None]
    last = _take(_best(score, width), jnp.maximum(place, 0), 0)
    return jnp.where(place < 0, _best(others, width), _take(number, last, nothing))


def _best(score: jax.Array, count: int) -> jax.Array:
    """The numbers of the best places, int32 [B, count], by score and then by number."""
    score = score.reshape(len(score), -1)
    missing = max(count - score.shape[1], 0)
    score = jnp.pad(score, ((0, 0), (0, missing)), constant_values=_NEVER)
    return exact_top_k(score, count)[1]


def _next_beam(
    table: DeviceTable | None,
    score: jax.Array,
    token: jax.Array,
    found: Lookups | None,
    chosen: jax.Array,
) -> _Beam:
    """The chosen children as a beam; those beyond the last one give places without a node."""
    batch, _, k = score.shape

    def take(x: jax.Array, fill: float) -> jax.Array:
        return _take(x.reshape(batch, -1), chosen, fill)

    candidate = chosen % k
    known = None
    if table is not None and found is not None:
        own = jnp.take_along_axis(token, candidate, axis=1)
        known = advance_found(table, own, [take(place, -1) for place in found.places])
    return _Beam(take(score, _NEVER), candidate, known)


def _take(x: jax.Array, at: jax.Array, fill: float) -> jax.Array:
    """The entries of each row of x [B, n] at int32 [B, m]; `fill` beyond the end."""
    return jnp.take_along_axis(x, at, axis=1, mode="fill", fill_value=fill)


def _tree(
    root: jax.Array,
    token: jax.Array,
    scores: jax.Array,
    parents: jax.Array,
    width: int,
    nodes: int,
) -> jax.Array:
    """The best N of all children as a packed tree.

    Args:
      root: int32 [B].
      token: int32 [B, d, k], the candidates'.
      scores: float32 [B, k + (d - 1) W k], of the first level's children, and of the W * k of each
        level after it.
      parents: int32 [B, (d - 1) W], which of these the beam of each level after the first is.
      width: W.
      nodes: N.
    """
    k = token.shape[2]
    missing = max(nodes - scores.shape[1], 0)
    scores = jnp.pad(scores, ((0, 0), (0, missing)), constant_values=_NEVER)
    score, chosen = exact_top_k(scores, nodes)  # [B, N]
    used = (score > _NEVER) & (root >= 0)[:, None]
    later = jnp.maximum(chosen - k, 0)
    first = chosen < k
    level = jnp.where(first, 0, later // (width * k) + 1)
    # The parent among all children; the root is -1.
    above = jnp.pad(parents, ((0, 0), (0, 1)))
    above = jnp.take_along_axis(above, jnp.minimum(later // k, above.shape[1] - 1), axis=1)
    parent = jnp.where(first, -1, above)
    is_parent = parent[..., None] == jnp.where(used, chosen, -2)[:, None]
    number = jax.lax.broadcasted_iota(jnp.int32, (1, 1, nodes), 2) + 1
    place = jnp.sum(jnp.where(is_parent, number, 0), axis=-1, dtype=jnp.int32)
    at = jnp.minimum(level * k + chosen % k, token[0].size - 1)
    own = jnp.take_along_axis(token.reshape(len(token), -1), at, axis=1)
    tree = jnp.where(used[:, None], jnp.stack([own, place, level + 1], axis=1), 0)
    top = jnp.pad(jnp.maximum(root, 0)[:, None, None], ((0, 0), (0, 2), (0, 0)))
    return jnp.concatenate([top, tree], axis=2)
