"""Memory that is freed goes back to the system."""

import subprocess
import sys

import pytest

from dart_jax.memory import peak_memory, resident_memory

LEFT = """
import numpy as np
from dart_jax.memory import give_back, resident_memory, return_large
before = resident_memory()
{first}
for size in 20_000_000, {size}:
    # What lies between freed arrays keeps them from the end of the heap.
    pairs = [(np.ones(size, np.uint8), bytearray(600)) for _ in range(60_000_000 // size)]
    kept = [between for _, between in pairs]
    del pairs
{then}
print(resident_memory() - before)
"""


def left(size, first="", then=""):
    """Bytes that a new process keeps after it freed 60 MB in arrays of a size."""
    code = LEFT.format(size=size, first=first, then=then)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(child.stdout)


@pytest.mark.skipif(resident_memory() is None, reason="the system does not tell")
@pytest.mark.parametrize(
    "remedy",
    [
        {"size": 2_000_000, "first": "return_large()"},
        {"size": 200_000, "then": "give_back()"},
    ],
)
def test_what_was_freed_goes_back(remedy):
    assert left(**remedy) < 10e6


def test_peak_and_resident_memory():
    assert (resident_memory() or 0) <= peak_memory()
