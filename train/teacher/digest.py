"""Digests that identify models by their content, independent of their path."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def model_digest(
    config: Any,
    params: Any,
    stored: Callable[[Sequence[str | int], jax.Array], jax.Array] | None = None,
) -> str:
    """Returns a digest of a model's config and parameters: each leaf's path, shape, dtype and bits.

    The config is part of it because the same weights can serve different configs. The digest does
    not depend on how devices share the parameters.

    Args:
      config: a frozen dataclass whose `repr` contains all its values.
      params: a tree of arrays, in nested dicts.
      stored: what a leaf, given with its path, stands for; None for itself.
    """

    @jax.jit
    def mix(leaf: jax.Array) -> jax.Array:
        width = jnp.dtype(leaf.dtype).itemsize
        kind = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
        bits = jax.lax.bitcast_convert_type(leaf, kind).astype(jnp.uint32)
        # Not by flattening, for which devices would have to join their parts.
        index, stride = jnp.zeros(leaf.shape, jnp.uint32), 1
        for axis in reversed(range(leaf.ndim)):
            along = jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
            index, stride = index + along * jnp.uint32(stride % 2**32), stride * leaf.shape[axis]
        # A different odd factor per index, so that swapping two values changes the sum.
        place = index * jnp.uint32(2654435762) + jnp.uint32(1)
        return jnp.sum((bits ^ (bits >> jnp.uint32(15))) * place, dtype=jnp.uint32)

    digest = hashlib.sha256(repr(config).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        leaf = jnp.asarray(leaf)
        if stored is not None:
            leaf = stored([key.key for key in path], leaf)
        entry = (jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype), int(mix(leaf)))
        digest.update(repr(entry).encode())
    return digest.hexdigest()[:16]
