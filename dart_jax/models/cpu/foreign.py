"""The C++ core's functions for CPUs, which XLA calls in compiled programs."""

from __future__ import annotations

import logging
import threading

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dart_jax import _core


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
