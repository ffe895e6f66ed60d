"""Trees drafted by the n-gram model only, on the device: the most likely paths, found best first.

Trees equal those of the C++ search (native/src/ngram_search.cpp), ties and noise included.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from dart_jax.decoding.search.exact_math import exponential, logarithm, product, sum_in_halves
from dart_jax.decoding.search.lookup import advance, read_context
from dart_jax.ngram.device_table import DeviceTable

_NEVER = -np.float32(np.inf)
_TINY = np.finfo(np.float32).tiny

# Followers of a context that noise may make the likeliest, as in native/src/ngram_search.cpp.
_MOST_WITH_NOISE = 256


class _Draws(NamedTuple):
    """How the target draws in each row: see `HostBuffer`.

    Attributes:
      key: uint32 [B, 2], of its noise.
      position: int32 [B], of the first draw after the root.
      scale: float32 [B], 1 / temperature; 0 in greedy decoding.
    """

    key: jax.Array
    position: jax.Array
    scale: jax.Array


class _Found(NamedTuple):
    """The nodes of the trees so far, by place, the root first, with their lists of followers.

    Attributes:
      tree: int32 [B, 3, N + 1].
      score: float32 [B, N + 1], the log-probability of the path.
      known: int32 [B, N + 1, order - 1], the n-gram contexts after each.
      tokens: int32 [B, N + 1, N], its followers, the likeliest first.
      steps: float32 [B, N + 1, N], the followers' log-probabilities; `_NEVER` beyond the last.
      taken: int32 [B, N + 1], how many of these are in the tree.
      alive: bool [B], whether the tree may grow.
    """

    tree: jax.Array
    score: jax.Array
    known: jax.Array
    tokens: jax.Array
    steps: jax.Array
    taken: jax.Array
    alive: jax.Array


def best_first_search(
    table: DeviceTable,
    context: jax.Array,
    draws: jax.Array | None,
    *,
    nodes: int,
    depth: int,
    eos: tuple[int, ...],
) -> jax.Array:
    """Searches the trees of a batch.

    Args:
      table: the n-grams, with lists of followers.
      context: int32 [B, C], the newest tokens. The last one is the root; a negative one gives a row
        of zeros.
      draws: int32 [B, 4], see `HostBuffer`; None drafts without noise.
      nodes: N; static, like all that follows.
      depth: the largest depth of a node.
      eos: tokens after which nothing is drafted.

    Returns:
      int32 [B, 3, N + 1]: the nodes' tokens, parents and depths, by descending score.
    """
    batch, places = context.shape[0], nodes + 1
    how = None
    if draws is not None:
        scale = jax.lax.bitcast_convert_type(draws[:, 3], jnp.float32)
        how = _Draws(draws[:, :2].astype(jnp.uint32), draws[:, 2], scale)
    root = context[:, -1]
    known = read_context(table, context)
    found = _Found(
        tree=jnp.zeros((batch, 3, places), jnp.int32).at[:, 0, 0].set(jnp.maximum(root, 0)),
        score=jnp.zeros((batch, places), jnp.float32),
        known=jnp.zeros((batch, places, known.shape[-1]), jnp.int32).at[:, 0].set(known),
        tokens=jnp.zeros((batch, places, nodes), jnp.int32),
        steps=jnp.full((batch, places, nodes), _NEVER),
        taken=jnp.zeros((batch, places), jnp.int32),
        alive=root >= 0,
    )
    row = jnp.arange(batch)

    def extend(found: _Found, place: jax.Array) -> _Found:
        """Gives a node its list."""
        level = found.tree[:, 2, place]
        tokens, steps = _followers(table, found.known[:, place], level, how, nodes)
        ended = jnp.zeros((batch,), bool)
        if eos:
            ended = jnp.isin(found.tree[:, 0, place], jnp.array(eos, jnp.int32)) & (place > 0)
        grows = found.alive & (level < depth) & ~ended
        steps = jnp.where(grows[:, None], steps, _NEVER)
        return found._replace(
            tokens=found.tokens.at[:, place].set(tokens), steps=found.steps.at[:, place].set(steps)
        )

    def grow(place: jax.Array, found: _Found) -> _Found:
        """Adds the best follower of all lists as the node of a place."""
        found = extend(found, place - 1)
        head = jnp.minimum(found.taken, nodes - 1)
        step = jnp.take_along_axis(found.steps, head[..., None], axis=2)[..., 0]
        value = jnp.where(found.taken < nodes, found.score + step, _NEVER)
        # Of equal ones the first: of the first node, as its followers were created first.
        parent = jnp.argmax(value, axis=1)
        score = value[row, parent]
        alive = found.alive & (score > _NEVER)
        token = found.tokens[row, parent, head[row, parent]]
        node = jnp.stack([token, parent.astype(jnp.int32), found.tree[row, 2, parent] + 1], axis=1)
        node = jnp.where(alive[:, None], node, 0)
        known = advance(table, found.known[row, parent], node[:, 0])
        return found._replace(
            tree=found.tree.at[:, :, place].set(node),
            score=found.score.at[:, place].set(score),
            known=found.known.at[:, place].set(known),
            taken=found.taken.at[row, parent].add(1),
            alive=alive,
        )

    if nodes:
        found = jax.lax.fori_loop(1, places, grow, found)
    return found.tree


def _followers(
    table: DeviceTable, known: jax.Array, level: jax.Array, draws: _Draws | None, nodes: int
) -> tuple[jax.Array, jax.Array]:
    """The N likeliest followers of the longest contexts that have any.

    Args:
      table: the n-grams.
      known: int32 [B, order - 1].
      level: int32 [B], the depth of the node that they follow.
      draws: how the target draws; None without noise.
      nodes: N.

    Returns:
      Tokens int32 [B, N] and log-probabilities float32 [B, N]; `_NEVER` beyond the last.
    """
    batch = known.shape[0]
    begin, size = jnp.zeros((batch,), jnp.int32), jnp.zeros((batch,), jnp.int32)
    for n in range(known.shape[1]):
        at = known[:, n] + (0 if n == 0 else table.vocab_size)
        listed = table.lists.at[at].get(mode="fill", fill_value=0)
        longer = (known[:, n] >= 0) & (listed[:, 1] > 0)
        begin = jnp.where(longer, listed[:, 0], begin)
        size = jnp.where(longer, listed[:, 1], size)
    most = nodes if draws is None else max(nodes, _MOST_WITH_NOISE)
    number = jnp.arange(most, dtype=jnp.int32)[None]
    follower = table.followers.at[begin[:, None] + number].get(mode="fill", fill_value=0)
    step = jax.lax.bitcast_convert_type(follower[..., 1], jnp.float32)
    step = jnp.where(number < size[:, None], step, _NEVER)
    token = follower[..., 0]
    if draws is None:
        return token, step
    step = jnp.where(draws.scale[:, None] > 0, _with_noise(draws, level, token, step), step)
    step, order = jax.lax.top_k(step, nodes)
    return jnp.take_along_axis(token, order, axis=1), step


def _with_noise(draws: _Draws, level: jax.Array, token: jax.Array, step: jax.Array) -> jax.Array:
    """The log-probabilities of followers, the likeliest first, with the noise of the target's
    draws: float32 [B, M]."""
    noise = _noise(draws, level, token)
    used = step > _NEVER
    noisy = product(step - step[:, :1], draws.scale[:, None]) + noise
    noisy = jnp.where(used, noisy, _NEVER)
    shifted = noisy - jnp.max(noisy, axis=1, keepdims=True)
    total = logarithm(sum_in_halves(jnp.where(used, exponential(shifted), np.float32(0))))
    return jnp.where(used, jnp.minimum(shifted - total[:, None], np.float32(0)), _NEVER)


def _noise(draws: _Draws, level: jax.Array, token: jax.Array) -> jax.Array:
    """The Gumbel noise of tokens, float32 [B, M], with the bits of native/src/noise.cpp."""

    def fold(key: tuple[jax.Array, jax.Array], data: jax.Array) -> tuple[jax.Array, jax.Array]:
        return threefry2x32_p.bind(*key, jnp.zeros_like(data), data)

    row = draws.key[:, 0], draws.key[:, 1]
    key = fold(row, (draws.position + level).astype(jnp.uint32))
    high, low = (jnp.broadcast_to(half[:, None], token.shape) for half in key)
    first, second = fold((high, low), token.astype(jnp.uint32))
    bits = (first ^ second) >> 9 | np.uint32(0x3F800000)  # from 1 to 2
    uniform = jax.lax.bitcast_convert_type(bits, jnp.float32) - np.float32(1)
    return -logarithm(-logarithm(jnp.where(uniform == 0, _TINY, uniform)))
