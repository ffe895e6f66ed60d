"""Keys and values take memory as they are written, in a real process."""

import os
import subprocess
import sys
from pathlib import Path

import process_memory
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
from process_memory import memory

engine = DartModel.from_pretrained(sys.argv[1]).engine(EngineConfig(kv_memory="{POOL}", slots=1))
print(memory())
assert engine.runner.kv_bytes > 0.99 * {POOL}
print(memory())
engine.run([Request(np.ones({LONGEST} - 8, np.int32), 8)])
print(memory())
"""


@native
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it")
def test_memory_is_taken_as_it_is_used(tiny):
    command = [sys.executable, "-c", PROGRAM, str(tiny.target)]
    env = os.environ | {"PYTHONPATH": str(Path(process_memory.__file__).parent)}
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
    before, started, used = map(int, text.split())
    assert started - before < POOL / 10
    assert used - started < POOL / 20
