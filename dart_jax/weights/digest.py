"""Digests that identify models by their content, independent of their path."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp


def model_digest(config: Any, params: Any) -> str:
    """Returns a digest of a model's config and parameters: each leaf's path, shape, dtype and bits.

    The config is part of it because the same weights can serve different configs.

    Args:
      config: a frozen dataclass whose `repr` contains all its values.
      params: a tree of arrays.
    """

    @jax.jit
    def mix(leaf: jax.Array) -> jax.Array:
        width = jnp.dtype(leaf.dtype).itemsize
        kind = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
        bits = jax.lax.bitcast_convert_type(leaf, kind).astype(jnp.uint32).reshape(-1)
        # A different odd factor per index, so that swapping two values changes the sum.
        place = jax.lax.iota(jnp.uint32, bits.size) * jnp.uint32(2654435762) + jnp.uint32(1)
        return jnp.sum((bits ^ (bits >> jnp.uint32(15))) * place, dtype=jnp.uint32)

    digest = hashlib.sha256(repr(config).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        leaf = jnp.asarray(leaf)
        entry = (jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype), int(mix(leaf)))
        digest.update(repr(entry).encode())
    return digest.hexdigest()[:16]
