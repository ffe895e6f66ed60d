"""Memory that is freed goes back to the system, and weights lie in huge pages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import process_memory
import pytest

from dart_jax.memory import HugePages

LEFT = """
import numpy as np
from process_memory import memory
from dart_jax.memory import give_back, return_large
before = memory()
{first}
for size in 20_000_000, {size}:
    # What lies between freed arrays keeps them from the end of the heap.
    pairs = [(np.ones(size, np.uint8), bytearray(600)) for _ in range(60_000_000 // size)]
    kept = [between for _, between in pairs]
    del pairs
{then}
print(memory() - before)
"""


def left(size, first="", then=""):
    """Bytes that a new process keeps after it freed 60 MB in arrays of a size."""
    code = LEFT.format(size=size, first=first, then=then)
    env = os.environ | {"PYTHONPATH": str(Path(process_memory.__file__).parent)}
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return int(child.stdout)


@pytest.mark.skipif(not process_memory.STATUS.is_file(), reason="the system does not tell")
@pytest.mark.parametrize(
    "remedy",
    [{"size": 2_000_000, "first": "return_large()"}, {"size": 200_000, "then": "give_back()"}],
)
def test_what_was_freed_goes_back(remedy):
    assert left(**remedy) < 10e6


def test_huge_pages():
    """Copies are equal, aligned, and in memory for which huge pages are asked."""
    rng, memory = np.random.default_rng(0), HugePages()
    sizes = {(3, 70): np.uint8, (1,): np.float32, (5000, 1000): ml_dtypes.bfloat16}
    sizes |= {(80_000_000,): np.uint8, (4, 4): np.uint8}
    arrays = [
        rng.integers(256, size=size, dtype=np.uint8).astype(dtype) for size, dtype in sizes.items()
    ]
    copies = [memory.copy(array) for array in arrays]
    for array, copy in zip(arrays, copies, strict=True):
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(copy, array)
        assert copy.ctypes.data % 64 == 0
    if Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        maps = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
        for copy in copies[:3]:
            [part] = [each for each in maps if copy.ctypes.data in range(*_bounds(each))]
            assert "hg" in re.search(r"VmFlags: (.*)", part)[1].split()


def _bounds(part):
    """The addresses between which a part of the memory is."""
    return [int(number, 16) for number in part.split()[0].split("-")]
