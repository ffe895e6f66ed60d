"""The CUDA runtime is found in wheels, in the process and in `CUDA_HOME`; no GPU is needed."""

import ctypes.util
import mmap
import sys

import pytest

from dart_jax.decoding.search import cuda_runtime
from dart_jax.decoding.search.cuda_runtime import find_cuda_runtime

CUDA_13 = "nvidia/cu13/lib/libcudart.so.13"
CUDA_12 = "nvidia/cuda_runtime/lib/libcudart.so.12"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """An empty site-packages, the only one, on a machine without a runtime."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(cuda_runtime, "_loaded", list)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    return packages


def add(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def add_plugin(packages, version):
    folder = packages / f"jax_cuda{version}_plugin-0.10.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: jax-cuda{version}-plugin\nVersion: 0.10.1\n")


@pytest.mark.parametrize(
    ("plugins", "libraries", "chosen"),
    [
        ([13], [CUDA_13], CUDA_13),
        ([12], [CUDA_12], CUDA_12),
        ([13], [CUDA_12, CUDA_13], CUDA_13),
        ([12], [CUDA_12, CUDA_13], CUDA_12),
        ([12, 13], [CUDA_12, CUDA_13], CUDA_13),
        ([13], [CUDA_12], CUDA_12),  # better than nothing
        ([], [CUDA_12, CUDA_13], CUDA_13),
        ([], ["nvidia/cu14/lib/libcudart.so.14", CUDA_13], "nvidia/cu14/lib/libcudart.so.14"),
        ([12], ["nvidia/other/lib/libcudart.so.12", CUDA_13], "nvidia/other/lib/libcudart.so.12"),
        ([13], ["nvidia/cublas/lib/libcublas.so.13"], None),
        ([], [], None),
    ],
)
def test_wheels(packages, plugins, libraries, chosen):
    for version in plugins:
        add_plugin(packages, version)
    add(packages, *libraries)
    assert find_cuda_runtime() == (chosen and str(packages / chosen))


def test_cuda_home(packages, tmp_path, monkeypatch):
    add_plugin(packages, 13)
    add(tmp_path, "cuda/lib64/libcudart.so.13.0.48")
    (tmp_path / "cuda/lib64/libcudart.so").symlink_to("libcudart.so.13.0.48")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert find_cuda_runtime() == str(tmp_path / "cuda/lib64/libcudart.so.13.0.48")
    # Preferred to a wheel of another version, but not to one of this version.
    add(packages, CUDA_12)
    assert find_cuda_runtime() == str(tmp_path / "cuda/lib64/libcudart.so.13.0.48")
    add(packages, CUDA_13)
    assert find_cuda_runtime() == str(packages / CUDA_13)
    # The link has the version of what it leads to.
    (packages / CUDA_13).rename(tmp_path / "libcudart.so.13")
    (tmp_path / "linked/lib").mkdir(parents=True)
    (tmp_path / "linked/lib/libcudart.so").symlink_to(tmp_path / "libcudart.so.13")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "linked"))
    assert find_cuda_runtime() == str(tmp_path / "linked/lib/libcudart.so")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what is loaded")
def test_loaded_libraries(tmp_path):
    library = tmp_path / "libcudart.so.12"
    library.write_bytes(bytes(mmap.PAGESIZE))
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert str(library) in cuda_runtime._loaded()
    assert str(library) not in cuda_runtime._loaded()
