"""Drafts that the text itself makes: what followed earlier occurrences of its last tokens.

They are branches of the drafter's tree, or a tree of their own without a drafter. As in
SuffixDecoding (arXiv 2411.04975), but of one text alone, with the noise of the target's draws, and
as one probability with the drafter's (docs/method.md, section 3).
native/include/dart/text_search.h has the formula, which the C++ core computes on CPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.sampling import (
    Noise,
    SamplingValues,
    inverse_temperature,
    packed_draws,
)
from dart_jax.decoding.tree import TREE_ROWS, ancestor_mask, scores_of, unpack
from dart_jax.models.cpu import or_nothing

# Tokens of a match that are compared, at most; and the depth of a tree without a drafter.
LONGEST = 16

# The share of the longest matches in all weights, then of the next shorter ones in the rest.
_LONGER = 0.75

# Matches whose followers are drafted on accelerators: the longest, the latest of equal ones.
_MATCHES = 16


class Texts(NamedTuple):
    """The texts of a batch, and how they are drafted from.

    Attributes:
      tokens: int32 [B, S]: the text, up to and with the root; -1 after it; and at the end tokens
        of other texts that the row may draft from, with a -1 between two; a text that grows
        overwrites the first of these.
      length: int32 [B], tokens of the text.
      shared: int32 [B], tokens of other texts, -1 between them included.
      trust: float32 [LONGEST], the probability that a token follows that has followed a match, by
        the length of the longest match, from 1 on.
      sampling: how the target samples.
      noise: of its draws, or None for drafts without.
    """

    tokens: jax.Array
    length: jax.Array
    shared: jax.Array
    trust: jax.Array
    sampling: SamplingValues
    noise: Noise | None


def draft_from_text(
    texts: Texts, base: jax.Array | None, nodes: int, depth: int, vocab_size: int, *, native: bool
) -> jax.Array:
    """Returns the packed trees of the texts and of a drafter, int32 [B, 4, N + 1].

    Args:
      texts: the texts.
      base: int32 [B, 4, M + 1], the drafter's trees, without a root if they are of no text. None
        without a drafter.
      nodes: N.
      depth: of the text's drafts, at most.
      vocab_size: V.
      native: whether the C++ core drafts.
    """
    if native:
        return _draft_natively(texts, base, nodes, depth)
    return _draft(texts, base, nodes, depth, vocab_size)


def _draft_natively(texts: Texts, base: jax.Array | None, nodes: int, depth: int) -> jax.Array:
    draws, rows = None, len(texts.tokens)
    if texts.noise is not None:
        draws = packed_draws(texts.sampling, texts.noise.keys, texts.noise.first)
    shape = jax.ShapeDtypeStruct((rows, TREE_ROWS, nodes + 1), jnp.int32)
    return jax.ffi.ffi_call("dart_text_trees", shape)(
        texts.tokens,
        texts.length,
        texts.shared,
        or_nothing(draws, jnp.int32),
        texts.trust,
        or_nothing(base, jnp.int32),
        depth=np.int64(depth),
    )


class _Followers(NamedTuple):
    """What follows the M longest matches, by depth from 1 to D.

    Attributes:
      tokens: int32 [B, M, D].
      first: bool [B, M, D], the first match among those that are alike up to the depth.
      nodes: int32 [B, M, D], that match's place among the matches.
      log_p: float32 [B, M, D], the logarithm of the probability of the token after those before.
      trust: float32 [B, M, D], of what follows those before.
    """

    tokens: jax.Array
    first: jax.Array
    nodes: jax.Array
    log_p: jax.Array
    trust: jax.Array


def _draft(
    texts: Texts, base: jax.Array | None, nodes: int, depth: int, vocab_size: int
) -> jax.Array:
    """The same in JAX, from the M longest matches."""
    rows, place = len(texts.tokens), jnp.arange(texts.tokens.shape[1], dtype=jnp.int32)[None]
    # Others' tokens may come right after a text.
    tokens = jnp.where(place == texts.length[:, None], -1, texts.tokens)
    texts = texts._replace(tokens=tokens)
    root = jnp.take_along_axis(texts.tokens, jnp.maximum(texts.length - 1, 0)[:, None], axis=1)
    empty = jnp.zeros((rows, TREE_ROWS, 1), jnp.int32)
    trees = empty if base is None else base
    trees = trees.at[:, 0, 0].set(root[:, 0])
    lengths, places = jax.vmap(_matches)(texts.tokens, texts.length)
    text = _followers(texts, lengths, places, depth, vocab_size)
    merged = _merge(trees, text, nodes)
    # Without a match the drafter's trees stay as they are, to the bit.
    own = jnp.pad(trees, ((0, 0), (0, 0), (0, max(nodes + 1 - trees.shape[2], 0))))
    found = jnp.any(lengths > 0, axis=1)[:, None, None]
    return jnp.where(found, merged, own[..., : nodes + 1])


def _followers(
    texts: Texts, lengths: jax.Array, places: jax.Array, depth: int, vocab_size: int
) -> _Followers:
    """Returns what follows matches of these lengths, int32 [B, M], at these places."""
    depths = jnp.arange(depth, dtype=jnp.int32)[None, None]
    at = places[:, :, None] + depths
    take = jax.vmap(lambda x, i: jnp.take(x, i, mode="fill", fill_value=-1))
    tokens = take(texts.tokens, at)
    real = (lengths[:, :, None] > 0) & (tokens >= 0)
    real = jnp.cumprod(real.astype(jnp.int32), axis=2).astype(bool)
    # Pairs of matches with equal followers up to a depth, and before it.
    equal = (tokens[:, :, None] == tokens[:, None]) & real[:, :, None] & real[:, None]
    same = jnp.cumprod(equal.astype(jnp.int32), axis=3).astype(bool)
    before = jnp.pad(same, ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=True)[..., :-1]
    before = before & real[:, None]
    weights = _weights(lengths)[:, None, :, None]
    mass, total = (jnp.sum(jnp.where(x, weights, 0), axis=2) for x in (same, before))
    share = jnp.log(jnp.where(real, mass / jnp.where(total > 0, total, 1), 0))
    nodes = jnp.argmax(same, axis=2).astype(jnp.int32)
    own = jnp.arange(lengths.shape[1], dtype=jnp.int32)[None, :, None]
    first = real & (nodes == own)
    if texts.noise is not None:
        noise = texts.noise.made(depth, vocab_size).table
        assert noise is not None
        rows = jnp.arange(len(tokens), dtype=jnp.int32)[:, None, None]
        scale = inverse_temperature(texts.sampling, len(tokens))[:, None, None]
        noisy = share * scale + noise[rows, depths, jnp.maximum(tokens, 0)]
        all_ = jax.nn.logsumexp(noisy[:, None], axis=2, where=before & first[:, None])
        share = jnp.where((scale > 0) & real, noisy - all_, share)
    longest = jnp.max(jnp.where(before, lengths[:, None, :, None], 0), axis=2)
    trust = jnp.take(texts.trust, longest + depths - 1, mode="clip")
    trust = jnp.where(longest > 0, trust, 0)
    tokens = jnp.where(real, tokens, -1)
    return _Followers(tokens, first, nodes, jnp.log(trust) + jnp.minimum(share, 0), trust)


def _merge(trees: jax.Array, text: _Followers, nodes: int) -> jax.Array:
    """Returns the N best nodes of a drafter's packed trees and of what follows in the text.

    A node is one of the drafter's, or of the text alone. Axes are rows, the drafter's nodes K,
    matches M, and depths D.
    """
    tree, scores = unpack(trees), scores_of(trees)
    batch, matches, depth = text.tokens.shape
    count = trees.shape[2]
    levels = jnp.arange(1, depth + 1, dtype=jnp.int32)[None, None]
    mask = ancestor_mask(tree, max(count - 1, 1))
    # The drafter's paths, and which matches go on like them.
    on_path = mask[..., None] & (tree.depth[:, None, :, None] == levels[None])
    paths = jnp.sum(jnp.where(on_path, tree.tokens[:, None, :, None], 0), axis=2)
    alike = (paths[:, :, None] == text.tokens[:, None]) | (
        tree.depth[:, :, None, None] < levels[None]
    )
    alike = jnp.all(alike & (text.tokens[:, None, :, :1] >= 0), axis=3)
    alike = alike & (tree.depth <= depth)[:, :, None]  # [B, K, M]
    root = jnp.arange(count, dtype=jnp.int32)[None] == 0
    alike = alike & (tree.real | root)[:, :, None]
    match = jnp.argmax(alike, axis=2).astype(jnp.int32)
    found = jnp.any(alike, axis=2)

    def at(x: jax.Array, match: jax.Array, level: jax.Array) -> jax.Array:
        """Entries of [B, M, D] at each node's match and level."""
        flat = x.reshape(batch, -1)
        return jnp.take_along_axis(flat, match * depth + jnp.clip(level, 0, depth - 1), axis=1)

    level = tree.depth - 1
    parents = tree.parents
    above = jnp.take_along_axis(match, parents, axis=1)
    follows = jnp.take_along_axis(found, parents, axis=1) & (level < depth)
    trust = jnp.where(follows, at(text.trust, above, level), 0)
    log_p = jnp.where(found, at(text.log_p, match, level), -jnp.inf)
    own = jnp.minimum(scores - jnp.take_along_axis(scores, parents, axis=1), 0)
    gain = jnp.minimum(jnp.logaddexp(jnp.log1p(-trust) + own, log_p), 0)
    gain = jnp.where(root | ~tree.real, 0, gain)
    score = jnp.sum(jnp.where(mask, gain[:, None], 0), axis=2)
    score = jnp.where(tree.real, score, -jnp.inf)
    # The text's nodes: those that the drafter has too go by its place.
    hit = alike[..., None] & (tree.depth[:, :, None, None] == levels[None])  # [B, K, M, D]
    also = jnp.any(hit, axis=1)
    drafted = jnp.argmax(hit, axis=1).astype(jnp.int32)
    of_drafter = jnp.take_along_axis(gain, drafted.reshape(batch, -1), axis=1)
    of_drafter = of_drafter.reshape(drafted.shape)
    path = jnp.cumsum(jnp.where(also, of_drafter, text.log_p), axis=2)
    path = jnp.where(text.first & ~also, path, -jnp.inf)
    # Their numbers: the drafter's, then by depth and match.
    number = count + (levels - 1) * matches + text.nodes
    number = jnp.where(also, drafted, number)
    parent = jnp.pad(number, ((0, 0), (0, 0), (1, 0)))[..., :-1]

    def together(of_tree: jax.Array, of_text: jax.Array) -> jax.Array:
        by_depth = of_text.swapaxes(1, 2).reshape(batch, -1)
        return jnp.concatenate([of_tree, by_depth], axis=1)

    every = together(score, path)
    kept = min(nodes, every.shape[1])
    best, chosen = jax.lax.top_k(every, kept)
    rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
    new = jnp.zeros(every.shape, jnp.int32)
    new = new.at[rows, chosen].set(jnp.arange(1, kept + 1, dtype=jnp.int32)[None])
    depths = jnp.broadcast_to(levels, text.tokens.shape)
    columns = ((tree.tokens, text.tokens), (parents, parent), (tree.depth, depths))
    token, parent, of_depth = (
        jnp.take_along_axis(together(*each), chosen, axis=1) for each in columns
    )
    parent = jnp.take_along_axis(new.at[:, 0].set(0), parent, axis=1)
    bits = jax.lax.bitcast_convert_type(best, jnp.int32)
    packed = jnp.stack([token, parent, of_depth, bits], axis=1)
    packed = jnp.where(jnp.isfinite(best)[:, None], packed, 0)
    packed = jnp.pad(packed, ((0, 0), (0, 0), (1, nodes - kept)))
    return packed.at[:, 0, 0].set(trees[:, 0, 0])


def _weights(lengths: jax.Array) -> jax.Array:
    """The weights of matches, float32 [B, M], by their lengths."""
    each = jnp.arange(1, LONGEST + 1, dtype=jnp.int32)[None]
    reaches = lengths[:, :, None] >= each[None]
    longest = jnp.max(lengths, axis=1, keepdims=True)
    shortest = jnp.min(jnp.where(lengths > 0, lengths, LONGEST), axis=1, keepdims=True)
    left = (1 - _LONGER) ** (longest - each).astype(jnp.float32)
    shares = jnp.where(each > shortest, _LONGER * left, left)
    shares = jnp.where((each >= shortest) & (each <= longest), shares, 0)
    counts = jnp.maximum(jnp.sum(reaches.astype(jnp.float32), axis=1), 1)
    return jnp.sum(jnp.where(reaches, (shares / counts)[:, None], 0), axis=2)


def _matches(tokens: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The longest matches of the end of a row's text: their lengths and their followers' places,
    int32 [M]; of length 0 where there are fewer."""
    place = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    matched, same = jnp.zeros_like(place), tokens >= 0
    for back in range(1, LONGEST + 1):
        last = jnp.take(tokens, jnp.maximum(length - back, 0))
        same = same & (place >= back) & (length >= back) & (jnp.roll(tokens, back) == last)
        matched = matched + same.astype(jnp.int32)
    _, places = jax.lax.top_k(matched * len(tokens) + place, min(_MATCHES, len(tokens)))
    return jnp.take(matched, places), places.astype(jnp.int32)
