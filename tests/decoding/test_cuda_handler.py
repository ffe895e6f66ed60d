"""The search for NVIDIA GPUs, as far as it goes without one; native/tests has the rest."""

import pytest

from dart_jax import _core


@pytest.mark.parametrize("path", ["", "/nowhere/libcudart.so.13"])
def test_a_runtime_that_cannot_be_loaded(path):
    with pytest.raises(RuntimeError, match=r"^no CUDA runtime: .+$"):
        _core.load_cuda_runtime(path)


def test_no_error_was_kept():
    assert _core.take_search_error(-1) is None


def test_built_with_the_other_handlers():
    assert (_core.cuda_ffi_handler is None) == (_core.ffi_handler is None)
