"""Peak floating-point operations per second of the devices."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

# Dense bfloat16 matrix products (float16 on T4 and V100, which have no bfloat16), in 1e12 FLOP/s
# per JAX device, from the vendors' data sheets; the first pattern found in the device kind counts.
_TERA = {
    r"B200|GB200": 2250,
    r"H200|GH200": 989,
    r"H100 PCIe": 756,
    r"H100 NVL": 835,
    r"H100|H800": 989,
    r"H20\b": 148,
    r"A100|A800": 312,
    r"A10G": 70,
    r"A10\b": 125,
    r"A30\b": 165,
    r"A40\b": 150,
    r"L40S": 362,
    r"L40\b": 181,
    r"L4\b": 121,
    r"V100": 125,
    r"T4\b": 65,
    r"TPU v6": 918,
    r"TPU7|TPU v7": 1153.5,
    r"TPU v5 lite|TPU v5e": 197,
    r"TPU v5": 459,
    r"TPU v4 lite|TPU v4i": 138,
    r"TPU v4": 275,
    r"TPU v3": 61.5,
    r"TPU v2": 22.5,
}


def known_peak(kind: str) -> float | None:
    """Returns the FLOP/s of bfloat16 products on a device of this JAX device kind, if listed."""
    return next((1e12 * tera for name, tera in _TERA.items() if re.search(name, kind)), None)


def peak_flops(devices: Sequence[Any], dtype: DTypeLike) -> float:
    """Returns the total FLOP/s of the devices: in bfloat16 if listed, else measured in `dtype`."""
    here = next(device for device in devices if device.process_index == jax.process_index())
    peak = known_peak(here.device_kind)
    if peak is not None:
        return peak * len(devices)
    # Virtual CPU devices share the cores of their process.
    count = len({d.process_index for d in devices}) if here.platform == "cpu" else len(devices)
    return _measured(here, dtype) * count


def _measured(device: Any, dtype: DTypeLike, size: int = 1024) -> float:
    """Returns the FLOP/s of the fastest of a few square products."""
    matrix = jax.device_put(jnp.ones((size, size), dtype), device)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)
