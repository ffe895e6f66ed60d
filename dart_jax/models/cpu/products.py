"""Matrix products on CPUs whose weights are stored in tiles, by the C++ core.

XLA's product of a few rows on a CPU takes several times as long as reading the weights. Here the
weights are stored once in the order in which they are read, and each value is summed in one fixed
order: a row's result is the same, bit for bit, computed alone or among others, by one thread or
many. Weights stored in bfloat16 take half of the time to read; arithmetic is float32 all the same,
so that the results are those of the same weights in float32.

For inference: products cannot be differentiated, nor mapped by `jax.vmap`.
"""

from __future__ import annotations

import logging
import math
import threading
from functools import partial

import jax
import jax.numpy as jnp

from dart_jax import _core

TILE = 32  # outputs of a tile

_FOREIGN_FUNCTION = "dart_product"


def pack(weights: jax.Array) -> jax.Array:
    """Stores weights in tiles: [in, out], float32 or bfloat16 -> [ceil(out / 32), in, 32].

    Tile t holds outputs 32 t to 32 t + 31; zeros are put in place of those that do not exist.
    """
    d_in, d_out = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -d_out % TILE)))
    return padded.reshape(d_in, padded.shape[1] // TILE, TILE).swapaxes(0, 1)


def is_packed(weights: jax.Array) -> bool:
    """Whether `pack` returned these weights, by their shape."""
    return weights.ndim == 3


def pack_exactly(weights: jax.Array) -> jax.Array:
    """As `pack`, in bfloat16 if that holds the weights' values exactly, as it does those of most
    published checkpoints."""
    rounded = weights.astype(jnp.bfloat16)
    exact = bool(jnp.all(rounded.astype(weights.dtype) == weights))
    return pack(rounded if exact else weights)


def unpack(tiles: jax.Array, d_out: int) -> jax.Array:
    """Returns what `pack` was given: [in, out]."""
    count, d_in, _ = tiles.shape
    return tiles.swapaxes(0, 1).reshape(d_in, count * TILE)[:, :d_out]


def rows(tiles: jax.Array, ids: jax.Array) -> jax.Array:
    """Looks up the weights of some outputs: the embeddings of tokens, if the weights of a target's
    head are also its embeddings.

    Args:
      tiles: [tiles, in, 32].
      ids: outputs, int32 [...], from 0 to out - 1.

    Returns:
      [..., in], of the tiles' dtype.
    """
    return tiles[ids // TILE, :, ids % TILE]


def product(x: jax.Array, tiles: jax.Array, d_out: int) -> jax.Array:
    """Computes x W, with float32 arithmetic.

    Args:
      x: [..., in], float32 or bfloat16.
      tiles: W as `pack` stores it, [ceil(d_out / 32), in, 32], float32 or bfloat16.
      d_out: outputs.

    Returns:
      [..., d_out], of x's dtype.
    """
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).astype(jnp.float32)
    plain = partial(_plain, d_out=d_out)
    if available():
        out = jax.ShapeDtypeStruct((flat.shape[0], d_out), jnp.float32)
        foreign = jax.ffi.ffi_call(_FOREIGN_FUNCTION, out)
        y = jax.lax.platform_dependent(flat, tiles, cpu=foreign, default=plain)
    else:
        y = plain(flat, tiles)
    return y.reshape(*x.shape[:-1], d_out).astype(x.dtype)


def available() -> bool:
    """Whether programs for a CPU call the C++ core; otherwise `product` is plain JAX.

    False if the core was built without jaxlib's headers, or for another jaxlib; a warning says so
    once.
    """
    global _registered
    with _lock:
        if _registered is None:
            _registered = _register()
            if not _registered:
                _logger.warning(
                    "this jaxlib cannot call dart_jax's products for CPUs, so models are computed "
                    "by JAX alone, up to twice as slowly; reinstall dart-jax beside this jaxlib "
                    "(pip install --force-reinstall --no-deps --no-cache-dir dart-jax)"
                )
        return _registered


def _plain(x: jax.Array, tiles: jax.Array, d_out: int) -> jax.Array:
    """As the C++ core, up to rounding: float32 [R, in] -> [R, d_out]."""
    y = jnp.einsum("ri,tio->rto", x, tiles.astype(jnp.float32), precision="highest")
    return y.reshape(x.shape[0], tiles.shape[0] * TILE)[:, :d_out]


_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_registered: bool | None = None  # None: not tried


def _register() -> bool:
    """Tells XLA of the C++ function; returns False if there is none that it can call."""
    handler = _core.product_ffi_handler
    if handler is None:
        return False
    try:
        jax.ffi.register_ffi_target(_FOREIGN_FUNCTION, handler, platform="cpu")
    except (jax.errors.JaxRuntimeError, ValueError):
        return False
    return True
