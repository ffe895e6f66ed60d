"""Numbers with fusions as users' programs have them; other tests compile without them."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

# Architectures' numbers, those of the reference, and texts of the engine. Whole texts of
# `generate` are compared by `eval.lossless` and `eval.speedup` in `.ci/run`, compiled as users do.
TESTS = """
    decoding/test_same_bits.py decoding/test_golden.py decoding/test_sampling.py
    models/test_drafter.py models/test_int8.py
    engine/test_engine_thread.py::test_every_text_is_that_of_generate
"""


@pytest.mark.long
@pytest.mark.skipif(
    jax.version.__version_info__ >= (0, 12), reason="all tests compile fusions as users do"
)
def test_numbers_with_fusions_as_users_have_them():
    tests = [str(Path(__file__).parent / name) for name in TESTS.split()]
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=true"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *tests]
    subprocess.run(command, env=environment, cwd=Path(__file__).parents[1], check=True)
