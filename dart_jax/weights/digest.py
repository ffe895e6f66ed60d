"""Telling models apart by what they are, wherever they lie."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp


def model_digest(config: Any, params: Any) -> str:
    """Of a model: of its config, which the same weights may serve in another way, and of its
    parameters: every leaf's path, shape, dtype and bits.

    Args:
      config: a frozen dataclass, which tells all its values in its `repr`.
      params: a tree of arrays.
    """

    @jax.jit
    def mix(leaf: jax.Array) -> jax.Array:
        width = jnp.dtype(leaf.dtype).itemsize
        kind = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
        bits = jax.lax.bitcast_convert_type(leaf, kind).astype(jnp.uint32).reshape(-1)
        # Odd factors, another for every place: no exchange of two numbers goes unseen.
        place = jax.lax.iota(jnp.uint32, bits.size) * jnp.uint32(2654435762) + jnp.uint32(1)
        return jnp.sum((bits ^ (bits >> jnp.uint32(15))) * place, dtype=jnp.uint32)

    digest = hashlib.sha256(repr(config).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        leaf = jnp.asarray(leaf)
        told = (jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype), int(mix(leaf)))
        digest.update(repr(told).encode())
    return digest.hexdigest()[:16]
