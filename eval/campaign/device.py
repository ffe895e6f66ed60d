"""The first part of a campaign: what the device is, and whether it computes right."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from dart_jax.programs.provenance import environment

_QUERY = "name,driver_version,memory.total,power.draw,clocks.sm,temperature.gpu"


def check_device() -> dict[str, Any]:
    """Describes the device and computes a product on it.

    Returns:
      Versions and names, memory in bytes, how models are computed, and the largest differences of
      products of 512 x 512 numbers from numpy's.

    Raises:
      UserError: a product is wrong.
    """
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 512, 512)).astype(np.float32)
    exact = a.astype(np.float64) @ b
    differences = {}
    for dtype, most in (("float32", 1e-3), ("bfloat16", 1.0)):
        with jax.default_matmul_precision("highest"):
            got = jnp.asarray(a, dtype) @ jnp.asarray(b, dtype)
        differences[dtype] = float(np.abs(np.asarray(got, np.float64) - exact).max())
        if not differences[dtype] <= most:
            raise UserError(
                f"this device's {dtype} products are off by {differences[dtype]:.3g}; no figure of "
                "it would mean anything: check its driver and jax's version"
            )
    device = jax.local_devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return {
        "environment": environment(),
        "devices": len(jax.local_devices()),
        "memory": memory,
        "execution": str(Execution.here()),
        "differences": differences,
    }


def gpu_state() -> str:
    """What nvidia-smi says of the GPU's clocks, power and temperature; empty without it."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
