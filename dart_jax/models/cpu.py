"""Calls of the C++ core for models on CPUs in compiled programs: which rows they compute, arrays
that they change in place, the largest entries of rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dart_jax import _core

AnyArrays = TypeVar("AnyArrays")


def available() -> bool:
    """Returns True if programs for a CPU can call the C++ core.

    False if the core was built without jaxlib's headers, or for another jaxlib; a warning says so
    once.
    """
    global _registered
    with _lock:
        if _registered is None:
            _registered = _register()
        return _registered


def or_nothing(array: jax.Array | None, dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Returns the array of an optional argument, or one without elements."""
    return jnp.zeros((0,), dtype) if array is None else array.astype(dtype)


@contextmanager
def only_rows(used: jax.Array | None) -> Iterator[None]:
    """Traces programs in which products, attention and draws compute only the first `used` rows,
    int32 scalar, of one sequence; those after them hold anything, and caches keep none of them.
    None for all rows."""
    token = _used.set(used)
    try:
        yield
    finally:
        _used.reset(token)


def used_rows() -> jax.Array:
    """Returns the number of rows that `only_rows` sets, int32 [1]; no elements for all rows."""
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
    """Registers the C++ functions with XLA; returns False if there are none that it can call."""
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
            "alone, two to four times as slowly; reinstall dart-jax with this jaxlib "
            "(pip install --force-reinstall --no-deps --no-cache-dir dart-jax)"
        )
    return callable_


def largest(x: jax.Array, k: int, used: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Returns the k largest entries of every row, largest first; of equal ones the first, and
    before all others NaN.

    Args:
      x: float32 [..., V].
      k: how many, 0 to V.
      used: of how many of the first rows, see `used_rows`; by default of all.

    Returns:
      Values [..., k] and their indices, int32.
    """
    shape = (*x.shape[:-1], k)
    types = jax.ShapeDtypeStruct(shape, x.dtype), jax.ShapeDtypeStruct(shape, jnp.int32)
    call = jax.ffi.ffi_call("dart_largest", types, vmap_method="broadcast_all")
    values, indices = call(x, or_nothing(used, jnp.int32))
    return values, indices


def copy_page(pools: AnyArrays, source: jax.Array, target: jax.Array) -> AnyArrays:
    """Copies page `source` of pools [P, ...] to page `target`, int32 scalars, in place, for any
    order of a page's numbers."""
    return in_place("dart_copy_page", pools, source.reshape(1), target.reshape(1))


def in_place(
    name: str, arrays: AnyArrays, *before: jax.Array, after: Sequence[jax.Array] = ()
) -> AnyArrays:
    """Calls a function that changes arrays, whose other arguments are before and after these."""
    old, structure = jax.tree.flatten(arrays)
    aliases = {len(before) + i: i for i in range(len(old))}
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in old]
    call = jax.ffi.ffi_call(name, types, input_output_aliases=aliases)
    return jax.tree.unflatten(structure, call(*before, *old, *after))


def unwritten(arrays: AnyArrays) -> AnyArrays:
    """Arrays that hold anything, and large ones take memory only as they are written.

    Args:
      arrays: a tree, whose shapes and dtypes they have; its values are not computed.
    """
    leaves, structure = jax.tree.flatten(arrays)
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    return jax.tree.unflatten(structure, jax.ffi.ffi_call("dart_unwritten", types)())


def clock(computed: jax.Array) -> jax.Array:
    """Returns the time when something was computed: microseconds, a uint32 scalar."""
    return jax.ffi.ffi_call("dart_clock", jax.ShapeDtypeStruct((), jnp.uint32))(computed)
