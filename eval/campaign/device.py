"""The first part of a campaign: what the device is, and whether it computes right."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError
from dart_jax.models.attention.attend import AttentionKernel, attend
from dart_jax.models.attention.segments import Prefix, Segment
from dart_jax.models.experts.kernel import routed
from dart_jax.models.experts.moe import ExpertsKernel
from dart_jax.models.experts.plain import grouped
from dart_jax.models.platform.execution import Execution
from dart_jax.programs.provenance import environment

# Qwen3-8B's heads with a tree of 60 nodes, and experts of Qwen3-30B-A3B's size.
_ROWS, _CONTEXT, _HEADS, _KV_HEADS, _HEAD_DIM = 61, 2048, 32, 8, 128
_EXPERTS, _CHOSEN, _WIDTH, _HIDDEN = 32, 8, 768, 2048
_MOST_APART = 2e-2  # relative, of the kernels' bfloat16 results and plain JAX's float32

_QUERY = "name,driver_version,memory.total,power.draw,clocks.sm,temperature.gpu"


def check_device() -> dict[str, Any]:
    """Describes the device and computes a product on it.

    Returns:
      Versions and names, memory in bytes, how models are computed, the largest differences of
      products of 512 x 512 numbers from numpy's, and the relative differences of what the
      platform's kernels compute in bfloat16 from plain JAX in float32.

    Raises:
      UserError: a product or a kernel's result is wrong.
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
    kernels = check_kernels(Execution.here())
    device = jax.local_devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return {
        "environment": environment(),
        "devices": len(jax.local_devices()),
        "memory": memory,
        "execution": str(Execution.here()),
        "differences": differences,
        "kernels": kernels,
    }


def check_kernels(execution: Execution) -> dict[str, float]:
    """Compares the kernels of attention and experts with plain JAX.

    Returns:
      The norm of each difference over that of the result, by the kernel's name.

    Raises:
      UserError: a kernel's result is wrong.
    """
    apart = {
        f"attention: {execution.attention}": _attention_apart(execution.attention),
        f"experts: {execution.experts}": _experts_apart(execution.experts),
    }
    for name, difference in apart.items():
        if not difference <= _MOST_APART:
            raise UserError(
                f"{name} is off by {difference:.3g} of its result: please report it with this "
                "device, its driver and jax's version; --attention dense goes without kernels"
            )
    return apart


def _attention_apart(kernel: AttentionKernel) -> float:
    """Of a tree's rows that see each other in part, and a prefix with unused rows."""
    rng = np.random.default_rng(1)
    mask = np.tril(rng.random((1, _ROWS, _ROWS)) < 0.5) | np.eye(_ROWS, dtype=bool)

    def normal(heads: int, rows: int) -> jax.Array:
        drawn = rng.standard_normal((1, heads, rows, _HEAD_DIM))
        return jnp.asarray(drawn, jnp.bfloat16)

    q, k, v = (normal(heads, _ROWS) for heads in (_HEADS, _KV_HEADS, _KV_HEADS))
    new = Segment(q, k, v, jnp.asarray(mask))
    length = jnp.array([_CONTEXT - 100], jnp.int32)
    prefix = Prefix(normal(_KV_HEADS, _CONTEXT), normal(_KV_HEADS, _CONTEXT), length)
    got = jax.jit(partial(attend, kernel=kernel))([new], prefix)
    wide = jax.tree.map(_in_float32, ([new], prefix))
    with jax.default_matmul_precision("highest"):
        return _apart(got, jax.jit(attend)(*wide))


def _experts_apart(kernel: ExpertsKernel) -> float:
    """Of the rows of a tree, each sent to experts drawn at random."""
    rng = np.random.default_rng(2)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape) * shape[-2] ** -0.5, jnp.bfloat16)

    up = (_EXPERTS, _HIDDEN, _WIDTH)
    kernels = normal(*up), normal(*up), normal(_EXPERTS, _WIDTH, _HIDDEN)
    rows, weights = normal(_ROWS, _HIDDEN), normal(_ROWS, _CHOSEN)
    experts = np.argsort(rng.random((_ROWS, _EXPERTS)))[:, :_CHOSEN].astype(np.int32)
    compute = grouped if kernel == "jax" else partial(routed, interpret=kernel == "interpret")
    got = jax.jit(compute)(rows, weights, experts, *kernels)
    wide = jax.tree.map(_in_float32, (rows, weights, experts, *kernels))
    with jax.default_matmul_precision("highest"):
        return _apart(got, jax.jit(grouped)(*wide))


def _in_float32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x


def _apart(got: jax.Array, expected: jax.Array) -> float:
    difference = jnp.linalg.norm((got.astype(jnp.float32) - expected).ravel())
    return float(difference / jnp.linalg.norm(expected.ravel()))


def gpu_state() -> str:
    """What nvidia-smi says of the GPU's clocks, power and temperature; empty without it."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
