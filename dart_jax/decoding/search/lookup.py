"""The look-up of n-grams in a `DeviceTable`, on the device."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.ngram.device_table import NO_COUNT, DeviceTable, log_probability

# log(0 + eps): what an n-gram counts that was never seen.
LOG_UNSEEN = log_probability(np.zeros(1, np.float32))[0]


class Lookups(NamedTuple):
    """N-gram scores of tokens after contexts.

    Attributes:
      log_q: float32 [B, W, k], log(q + eps) of the longest n-gram that was counted.
      places: int32 [B, W, k] each, of the n-grams of 2, 3, .. tokens in the table, but not of the
        longest; -1 for one that was never seen.
    """

    log_q: jax.Array
    places: list[jax.Array]


def find(
    table: DeviceTable, length: int, context: jax.Array, token: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Looks up n-grams of `length` >= 2 tokens.

    Args:
      table: the n-grams.
      length: static.
      context: int32 [...], what identifies the contexts; -1 for one that was never seen.
      token: int32 [...], the last tokens; broadcast against the contexts.

    Returns:
      The n-grams' places in the table, int32, -1 for one that was never seen; and the
      log-probability there, float32 (see `DeviceTable.entries`).
    """
    bucket, buckets, place, places = table.sections[length - 2]
    first, second = context.astype(jnp.uint32), token.astype(jnp.uint32)
    at = bucket + _scaled(_hash(first, second, jnp.uint32(0)), buckets)
    seed = table.seeds.at[at].get(mode="clip").astype(jnp.uint32) + 1
    at = place + _scaled(_hash(first, second, seed), places)
    entry = table.entries.at[at].get(mode="clip")
    seen = (entry[..., 0] == context) & (entry[..., 1] == token) & (context >= 0)
    log_q = jax.lax.bitcast_convert_type(entry[..., 2], jnp.float32)
    return jnp.where(seen, at, -1), log_q


def look_up(table: DeviceTable, known: jax.Array, token: jax.Array) -> Lookups:
    """Looks up tokens after contexts.

    Args:
      table: the n-grams.
      known: int32 [B, W, order - 1], see `read_context`.
      token: int32 [B, k].
    """
    log_q = jnp.full((*known.shape[:2], token.shape[-1]), LOG_UNSEEN)
    places = []
    for n in range(known.shape[-1]):
        place, found = find(table, n + 2, known[..., n, None], token[:, None])
        if places:  # nothing follows a context that does not follow a shorter one
            place = jnp.where(places[-1] >= 0, place, -1)
        log_q = jnp.where((place >= 0) & (found != NO_COUNT), found, log_q)
        places.append(place)
    return Lookups(log_q, places[:-1])


def read_context(table: DeviceTable, context: jax.Array) -> jax.Array:
    """Identifiers of the contexts of the last 1, 2, .. tokens of int32 [B, C]: int32
    [B, order - 1], -1 for those that were never seen."""
    longest = table.sections.shape[0]
    known = jnp.full((context.shape[0], longest), -1, jnp.int32)
    for column in range(max(context.shape[1] - longest, 0), context.shape[1]):
        known = advance(table, known, context[:, column])
    return known


def advance(table: DeviceTable, known: jax.Array, token: jax.Array) -> jax.Array:
    """Returns the contexts after one more token.

    Args:
      table: the n-grams.
      known: int32 [..., order - 1], see `read_context`.
      token: int32 [...].
    """
    found = [find(table, n + 2, known[..., n], token)[0] for n in range(known.shape[-1] - 1)]
    return advance_found(table, token, found)


def advance_found(table: DeviceTable, token: jax.Array, places: list[jax.Array]) -> jax.Array:
    """Returns the contexts after one more token, of which the n-grams' places are known.

    Args:
      table: the n-grams.
      token: int32 [...].
      places: int32 [...] each, of the n-grams of 2, 3, .. tokens that end in it.
    """
    first = jnp.where((token >= 0) & (token < table.vocab_size), token, -1)
    known = [first, *places][: table.sections.shape[0]]
    return jnp.stack(known, axis=-1) if known else jnp.empty((*token.shape, 0), jnp.int32)


def _hash(first: jax.Array, second: jax.Array, seed: jax.Array) -> jax.Array:
    """`pair_hash` of native/include/dart/perfect_hash.h."""
    x = (first ^ seed * np.uint32(0x9E3779B1)) * np.uint32(0x85EBCA6B)
    x = ((x ^ x >> 15) + second) * np.uint32(0xC2B2AE35)
    x = (x ^ x >> 16) * np.uint32(0x27D4EB2F)
    return x ^ x >> 15


def _scaled(h: jax.Array, n: jax.Array) -> jax.Array:
    """`scale_hash` of the same file: a number below n, int32."""
    mask, n = np.uint32(0xFFFF), n.astype(jnp.uint32)
    middle = (h >> 16) * (n & mask) + ((h & mask) * (n & mask) >> 16)
    other = (h & mask) * (n >> 16) + (middle & mask)
    return ((h >> 16) * (n >> 16) + (middle >> 16) + (other >> 16)).astype(jnp.int32)
