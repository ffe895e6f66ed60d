"""Functions of the C++ core for models on CPUs, which XLA calls in compiled programs: rows that are
appended or compared, draws, and the look-up of n-grams.

Products are in `kernels/tiles.py`, and attention is in `attention/native.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dart_jax import _core
from dart_jax.models.cache import AnyCache, KVCache, parts, with_layers

AnyArrays = TypeVar("AnyArrays")


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


@contextmanager
def only_rows(used: jax.Array | None) -> Iterator[None]:
    """Traces programs in which products and attention compute only the first `used` rows, int32
    scalar, of one sequence; those after them hold anything, and caches keep none of them. None for
    all rows."""
    token = _used.set(used)
    try:
        yield
    finally:
        _used.reset(token)


def used_rows() -> jax.Array:
    """The number of rows that `only_rows` sets, int32 [1]; without elements for all rows."""
    used = _used.get()
    return or_nothing(None, jnp.int32) if used is None else used.reshape(1)


def zeros_if_unused(rows: jax.Array) -> jax.Array:
    """Rows [B, K, T, h], of which those are 0 that `only_rows` leaves out: they may hold NaN, which
    plain JAX would multiply by 0."""
    used = _used.get()
    if used is None:
        return rows
    return jnp.where(jnp.arange(rows.shape[2])[:, None] < used, rows, 0)


_used: ContextVar[jax.Array | None] = ContextVar("used", default=None)
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


def append_rows(cache: AnyCache, rows: KVCache, index: jax.Array, length: jax.Array) -> AnyCache:
    """Computes `cache.append` for all layers at once, of the rows that `only_rows` leaves."""
    layers, pages = parts(cache)
    old, structure = jax.tree.flatten(layers)
    new = jax.ffi.ffi_call(
        "dart_append",
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in old],
        input_output_aliases={4 + i: i for i in range(len(old))},
    )(
        index.astype(jnp.int32),
        length.astype(jnp.int32),
        or_nothing(pages, jnp.int32),
        used_rows(),
        *old,
        *jax.tree.leaves(rows),
    )
    return with_layers(cache, jax.tree.unflatten(structure, new))


def copy_page(pools: AnyArrays, source: jax.Array, target: jax.Array) -> AnyArrays:
    """Copies page `source` of pools [P, ...] to page `target`, int32 scalars, in place, whatever
    the order of a page's numbers is."""
    old, structure = jax.tree.flatten(pools)
    new = jax.ffi.ffi_call(
        "dart_copy_page",
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in old],
        input_output_aliases={2 + i: i for i in range(len(old))},
    )(source.reshape(1), target.reshape(1), *old)
    return jax.tree.unflatten(structure, new)


def unwritten(arrays: AnyArrays) -> AnyArrays:
    """Arrays that hold anything, and large ones take memory only as they are written.

    Args:
      arrays: a tree, whose shapes and dtypes they have; its values are not computed.
    """
    leaves, structure = jax.tree.flatten(arrays)
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    return jax.tree.unflatten(structure, jax.ffi.ffi_call("dart_unwritten", types)())


def clock(computed: jax.Array) -> jax.Array:
    """The time when something was computed: microseconds, a uint32 scalar."""
    return jax.ffi.ffi_call("dart_clock", jax.ShapeDtypeStruct((), jnp.uint32))(computed)


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
      As `largest`; zeros in rows that `only_rows` leaves out.
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
        used_rows(),
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
