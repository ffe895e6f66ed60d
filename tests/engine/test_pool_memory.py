"""Keys and values take memory as they are written, in a real process."""

import subprocess
import sys

import pytest
from needs import native

POOL, LONGEST = 2 * 10**9, 2048

# Prints the resident memory before the pools, with them, and after a request of LONGEST tokens.
PROGRAM = f"""
import sys
import numpy as np
from dart_jax import DartModel
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Request
from dart_jax.memory import resident_memory

engine = DartModel.from_pretrained(sys.argv[1]).engine(EngineConfig(kv_memory="{POOL}", slots=1))
print(resident_memory())
assert engine.runner.kv_bytes > 0.99 * {POOL}
print(resident_memory())
engine.run([Request(np.ones({LONGEST} - 8, np.int32), 8)])
print(resident_memory())
"""


@native
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it")
def test_memory_is_taken_as_it_is_used(tiny):
    command = [sys.executable, "-c", PROGRAM, str(tiny.target)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    before, started, used = map(int, text.split())
    assert started - before < POOL / 10
    assert used - started < POOL / 20
