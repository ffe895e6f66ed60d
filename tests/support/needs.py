"""What some tests need: PyTorch as a judge, SmolLM2, and programs that can call the C++ core."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.models.cpu import available
from dart_jax.named.fetched import fetch

native = pytest.mark.skipif(
    not _core.cpu_ffi_handlers or not available(), reason="built without jaxlib's headers"
)
NATIVE = pytest.param("native", marks=native)


def smollm2() -> None:
    """Skips the test where SmolLM2 cannot be fetched."""
    try:
        fetch("smollm2", patient=False)
    except UserError as error:
        pytest.skip(f"it takes a model that cannot be fetched here: {error}")


def judge(name: str) -> ModuleType:
    """Imports a judge, such as PyTorch; where it is missing the tests are skipped, or fail if
    DART_REQUIRE_PARITY is 1."""
    if os.environ.get("DART_REQUIRE_PARITY") == "1":
        return importlib.import_module(name)
    return pytest.importorskip(name)
