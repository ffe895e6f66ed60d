"""Functions of the C++ core for models on CPUs, which XLA calls in compiled programs.

Products of a few rows: XLA's take several times as long as reading the weights. Here the weights
are stored once, in tiles, in the order in which they are read, and each value is summed in one
fixed order: a row's result is the same, bit for bit, computed alone or among others, by one thread
or many. Weights stored in bfloat16 take half of the time to read; arithmetic is float32 all the
same, so that the results are those of the same weights in float32. With weights in 8 bits the
inputs are rounded to 8 bits too, and the products within a group of inputs are summed as integers.
For inference: products cannot be differentiated, nor mapped by `jax.vmap`.

Besides: rows that are looked up, appended or compared, draws, and the look-up of n-grams. Attention
is in `attention/native.py`.
"""

from __future__ import annotations

import logging
import math
import threading
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dart_jax import _core
from dart_jax.models.cache import AnyCache, KVCache, parts, with_layers
from dart_jax.models.inputs import Gated, Inputs, Normed, add, computed, source


def available() -> bool:
    """Tells whether programs for a CPU can call the C++ core.

    False if the core was built without jaxlib's headers, or for another jaxlib; a warning says so
    once.
    """
    global _registered
    with _lock:
        if _registered is None:
            _registered = _register()
        return _registered


def or_nothing(array: jax.Array | None, dtype: DTypeLike = jnp.float32) -> jax.Array:
    """An optional argument: the array, or one without elements."""
    return jnp.zeros((0,), dtype) if array is None else array.astype(dtype)


_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_registered: bool | None = None  # None: not tried


def _register() -> bool:
    """Tells XLA of the C++ functions; returns False if there are none that it can call."""
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError:
        return False  # JAX_PLATFORMS leaves it out
    # A function of another version, told before there is a backend, would keep it from starting.
    try:
        for name, handler in _core.cpu_ffi_handlers.items():
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
    except (RuntimeError, TypeError, ValueError):
        callable_ = False
    else:
        callable_ = bool(_core.cpu_ffi_handlers)
    if not callable_:
        _logger.warning(
            "this jaxlib cannot call dart_jax's C++ core, so models on CPUs are computed by JAX "
            "alone, two to four times as slowly; reinstall dart-jax beside this jaxlib "
            "(pip install --force-reinstall --no-deps --no-cache-dir dart-jax)"
        )
    return callable_


TILE = 32  # outputs of a tile
GROUP = 64  # inputs of a group
LARGEST = 127  # magnitude of a value in 8 bits
_QUAD = 4


def is_packed(weights: Any) -> bool:
    """Tells whether weights are in tiles, by their shape."""
    return weights.ndim == 3


# Jitted, so that memory holds little but the weights and the tiles.
@partial(jax.jit, static_argnames=("transposed", "dtype"))
def pack(weights: jax.Array, transposed: bool = False, dtype: DTypeLike | None = None) -> jax.Array:
    """Stores weights [in, out], float32 or bfloat16, in tiles of a dtype, by default their own; if
    `transposed`, weights [out, in]."""
    weights = (weights.T if transposed else weights).astype(dtype or weights.dtype)
    d_in, d_out = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -d_out % TILE)))
    return padded.reshape(d_in, padded.shape[1] // TILE, TILE).swapaxes(0, 1)


def pack_exactly(weights: jax.Array, transposed: bool = False) -> jax.Array:
    """Stores weights in tiles of bfloat16 if that holds their values exactly, as it does those of
    most published checkpoints; otherwise of their dtype."""
    exact = bool(_fits_bfloat16(weights))
    return pack(weights, transposed, jnp.bfloat16 if exact else None)


@jax.jit
def _fits_bfloat16(weights: jax.Array) -> jax.Array:
    return jnp.all(weights.astype(jnp.bfloat16).astype(weights.dtype) == weights)


@partial(jax.jit, static_argnames="transposed")
def pack_int8(weights: jax.Array, transposed: bool = False) -> jax.Array:
    """Stores weights in tiles of 8 bits: in each group the weight of the largest magnitude becomes
    127 or -127."""
    in_axis = 1 if transposed else 0
    d_in, d_out = weights.shape[in_axis], weights.shape[1 - in_axis]
    padding = [(0, 0), (0, 0)]
    padding[in_axis], padding[1 - in_axis] = (0, -d_in % GROUP), (0, -d_out % TILE)
    padded = jnp.pad(weights, padding)

    def tile(first: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_slice_in_dim(padded, first, TILE, axis=1 - in_axis)
        part = (part.T if transposed else part).astype(jnp.float32)
        values, scales = round_groups(part.reshape(-1, GROUP, TILE), 1)
        groups = len(values)
        values = values.reshape(groups, GROUP // _QUAD, _QUAD, TILE).swapaxes(2, 3)
        parts = values, jax.lax.bitcast_convert_type(scales, jnp.int8)
        return jnp.concatenate([x.reshape(groups, -1) for x in parts], axis=-1)

    # One after another: memory holds little but the weights and the tiles.
    return jax.lax.map(tile, jnp.arange(0, padded.shape[1 - in_axis], TILE))


def round_groups(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Rounds groups of numbers along an axis, float32 [..., 64, ...], to 8 bits.

    Returns:
      int8 of x's shape, and float32 scales [..., ...]: NaN if a number of the group is not finite.
    """
    magnitude = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
    some = magnitude > 1e-30  # below, numbers are 0: dividing by them might overflow
    values = jnp.round(x * jnp.where(some, LARGEST / magnitude, 0))
    scales = jnp.where(some, magnitude / LARGEST, 0)
    scales = jnp.where(jnp.isfinite(magnitude), scales, jnp.nan)
    return values.astype(jnp.int8), jnp.squeeze(scales, axis)


def unpack(tiles: jax.Array, d_in: int, d_out: int) -> jax.Array:
    """Returns the weights that tiles hold, [in, out]; float32, if they are in 8 bits."""
    if tiles.dtype == jnp.int8:
        count, groups, _ = tiles.shape
        values = tiles[..., : GROUP * TILE].reshape(count, groups, GROUP // _QUAD, TILE, _QUAD)
        values = values.swapaxes(-1, -2).reshape(count, groups, GROUP, TILE)
        scales = tiles[..., GROUP * TILE :].reshape(count, groups, 1, TILE, 4)
        scales = jax.lax.bitcast_convert_type(scales, jnp.float32)
        tiles = (values.astype(jnp.float32) * scales).reshape(count, -1, TILE)
    return tiles.swapaxes(0, 1).reshape(tiles.shape[1], -1)[:d_in, :d_out]


_INT8_BYTES = GROUP + 8  # of a group of inputs in 8 bits, with their scale and sum


def product(
    inputs: Inputs,
    tiles: jax.Array,
    d_out: int,
    bias: jax.Array | None = None,
    residual: jax.Array | None = None,
) -> jax.Array:
    """Computes x W + bias + residual, with float32 arithmetic.

    Args:
      inputs: x, [..., in], float32 or bfloat16.
      tiles: W, [in, d_out], as `pack` stores it.
      d_out: outputs.
      bias: [d_out]; None for none.
      residual: [..., d_out]; None for none.

    Returns:
      [..., d_out], of x's dtype.

    Raises:
      RuntimeError: XLA cannot call the C++ core here.
    """
    if not available():
        raise RuntimeError("weights in tiles need the C++ core, which this jaxlib cannot call")
    x = source(inputs)
    if x.dtype != jnp.float32:
        # In these dtypes each operation rounds.
        y = product(computed(inputs).astype(jnp.float32), tiles, d_out).astype(x.dtype)
        return add(y, bias, residual)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    count, width = rows.shape
    kind, scale, eps, offset = "rows", None, 0.0, 0.0
    normed, int8 = (0,), (0,)  # rows that the core keeps meanwhile: normalised or gated; in 8 bits
    if isinstance(inputs, Normed):
        kind, scale, eps, offset = "norm", inputs.scale, inputs.eps, inputs.offset or 0.0
        normed = (count, width)
    elif isinstance(inputs, Gated):
        kind = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}[inputs.activation]
        normed = (count, width // 2)
    if tiles.dtype == jnp.int8:
        int8 = (count, tiles.shape[1], _INT8_BYTES)
    results = (
        jax.ShapeDtypeStruct((count, d_out), x.dtype),
        jax.ShapeDtypeStruct(normed, x.dtype),
        jax.ShapeDtypeStruct(int8, jnp.int8),
    )
    y, *_ = jax.ffi.ffi_call("dart_product", results)(
        rows,
        tiles,
        or_nothing(scale),
        or_nothing(bias),
        or_nothing(residual),
        input=kind,
        eps=np.float32(eps),
        offset=np.float32(offset),
    )
    return y.reshape(*x.shape[:-1], d_out)


def largest(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest entries of every row, largest first; of equal ones the first, and before all
    others NaN.

    Args:
      x: float32 [..., V].
      k: how many, 0 to V.

    Returns:
      Values [..., k] and their indices, int32.
    """
    shape = (*x.shape[:-1], k)
    types = jax.ShapeDtypeStruct(shape, x.dtype), jax.ShapeDtypeStruct(shape, jnp.int32)
    values, indices = jax.ffi.ffi_call("dart_largest", types, vmap_method="broadcast_all")(x)
    return values, indices


def take_rows(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Looks up rows.

    Args:
      table: [V, D].
      ids: int32 [...], from 0 to V - 1.

    Returns:
      [..., D].
    """
    out = jax.ShapeDtypeStruct((*ids.shape, table.shape[1]), table.dtype)
    return jax.ffi.ffi_call("dart_take", out)(table, ids.astype(jnp.int32))


def append_rows(cache: AnyCache, rows: KVCache, index: jax.Array, length: jax.Array) -> AnyCache:
    """Computes `cache.append` for all layers at once."""
    layers, pages = parts(cache)
    old, structure = jax.tree.flatten(layers)
    new = jax.ffi.ffi_call(
        "dart_append",
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in old],
        input_output_aliases={3 + i: i for i in range(len(old))},
    )(
        index.astype(jnp.int32),
        length.astype(jnp.int32),
        or_nothing(pages, jnp.int32),
        *old,
        *jax.tree.leaves(rows),
    )
    return with_layers(cache, jax.tree.unflatten(structure, new))


def gumbel_noise_native(keys: jax.Array, position: jax.Array, vocab: int) -> jax.Array:
    """Computes `decoding.sampling.gumbel_noise`, up to rounding.

    Args:
      keys: uint32 [B, 2].
      position: int32 [B, P].
      vocab: V.

    Returns:
      float32 [B, P, V].
    """
    out = jax.ShapeDtypeStruct((*position.shape, vocab), jnp.float32)
    return jax.ffi.ffi_call("dart_noise", out, vmap_method="sequential")(keys, position)


def draw_native(
    logits: jax.Array,
    temperature: jax.Array,
    filters: tuple[jax.Array | None, jax.Array | None, jax.Array | None],
    keys: jax.Array,
    first: jax.Array,
    levels: jax.Array,
    ids: jax.Array | None,
    count: int,
) -> tuple[jax.Array, jax.Array]:
    """Computes `decoding.sampling.most_noisy`.

    Args:
      logits: float32 [B, T, size].
      temperature: float32 scalar or [B].
      filters: top-k, int32, top-p and min-p, float32, scalars or [B]; None for none.
      keys: uint32 [B, 2], see `gumbel_noise_native`.
      first: int32 [B], the position of level 0.
      levels: int32 [B, T].
      ids: int32 [size], the logits' tokens; None if they are all in order.
      count: how many, 0 to size.

    Returns:
      As `largest`.
    """
    (batch, *_), shape = logits.shape, (*logits.shape[:2], count)

    def per_row(x: jax.Array | None, dtype: DTypeLike) -> jax.Array:
        return or_nothing(None if x is None else jnp.broadcast_to(x, (batch,)), dtype)

    top_k, top_p, min_p = filters
    types = jax.ShapeDtypeStruct(shape, logits.dtype), jax.ShapeDtypeStruct(shape, jnp.int32)
    values, indices = jax.ffi.ffi_call("dart_draw", types, vmap_method="sequential")(
        logits,
        per_row(temperature, jnp.float32),
        keys,
        first,
        levels,
        or_nothing(ids, jnp.int32),
        per_row(top_k, jnp.int32),
        per_row(top_p, jnp.float32),
        per_row(min_p, jnp.float32),
    )
    return values, indices


def look_up_native(
    sections: jax.Array,
    seeds: jax.Array,
    prints: jax.Array,
    entries: jax.Array,
    known: jax.Array,
    token: jax.Array,
    wanted: jax.Array,
    *,
    unseen: np.float32,
) -> tuple[jax.Array, jax.Array]:
    """Computes `decoding.search.lookup.look_up`.

    Args:
      sections: int32 [order - 1, 4]; this and what follows as in `DeviceTable`.
      seeds: uint16 [K].
      prints: uint8 [S].
      entries: int32 [S, 3].
      known: int32 [B, W, order - 1].
      token: int32 [B, k].
      wanted: bool [B, W, k].
      unseen: log(0 + eps).

    Returns:
      log_q float32 [B, W, k] and places int32 [order - 2, B, W, k].
    """
    shape = (*known.shape[:2], token.shape[-1])
    types = (
        jax.ShapeDtypeStruct(shape, jnp.float32),
        jax.ShapeDtypeStruct((known.shape[-1] - 1, *shape), jnp.int32),
    )
    call = jax.ffi.ffi_call("dart_look_up", types)
    log_q, places = call(sections, seeds, prints, entries, known, token, wanted, unseen=unseen)
    return log_q, places
