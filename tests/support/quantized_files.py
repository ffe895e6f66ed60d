"""Quantised checkpoints, written as the descriptions of their formats say, and what they stand for.

Each function returns the stored tensors of a layer by the last part of their names, and the float32
weight [out, in] that they stand for.
"""

import json

import ml_dtypes
import numpy as np

from dart_jax.weights.checkpoint import save_target
from dart_jax.weights.safetensors_file import Tensor, open_safetensors
from dart_jax.weights.tensor_files import write_tensors


def spread(numbers, shape, block):
    """Each number for a whole block, of which the last ones may be smaller."""
    return np.kron(numbers, np.ones(block, np.float32))[: shape[0], : shape[1]]


def blocks(weight, block, largest, dtype=np.float32):
    """A scale for each block, by which the largest weight becomes `largest`."""
    grid = [-(-n // b) for n, b in zip(weight.shape, block, strict=True)]
    scales = np.empty(grid, np.float32)
    for i, j in np.ndindex(*grid):
        rows, columns = (slice(k * b, (k + 1) * b) for k, b in zip((i, j), block, strict=True))
        scales[i, j] = np.abs(weight[rows, columns]).max() / largest
    return scales.astype(dtype)


def fp8(weight, block=None, name="weight_scale_inv", dtype=np.float32):
    """8-bit floats; a scale per block, or one without axes."""
    sizes = block or weight.shape
    scales = blocks(weight, sizes, 400, dtype)
    factors = spread(scales.astype(np.float32), weight.shape, sizes)
    values = (weight / factors).astype(ml_dtypes.float8_e4m3fn)
    stored = {"weight": values, name: scales if block else scales[0, 0]}
    return stored, values.astype(np.float32) * factors


def int8(weight, block, zeros=False):
    """8-bit integers, signed."""
    scales = blocks(weight, block, 90)
    shifts = np.random.default_rng(1).integers(-30, 30, scales.shape) * zeros
    factors = spread(scales, weight.shape, block)
    shift = spread(shifts, weight.shape, block)
    values = np.rint(weight / factors + shift).astype(np.int8)
    stored = {"weight": values, "weight_scale": scales}
    if zeros:
        stored["weight_zero_point"] = shifts.astype(np.int8)
    return stored, (values - shift).astype(np.float32) * factors


def is_projection(name):
    """Whether a tensor is the weight of a linear layer that programs quantise."""
    return name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))


def write(directory, target, quantization, quantize, max_shard_size=10**9):
    """Writes a quantised model into `directory`, and what it stands for into its "plain".

    Args:
      directory: for the files.
      target: config and parameters.
      quantization: the `quantization_config`.
      quantize: takes the name of a layer and its weight; one of the functions above.
      max_shard_size: bytes.
    """
    plain = directory / "plain"
    save_target(plain, *target)
    tensors = {n: t.read() for n, t in open_safetensors(plain / "model.safetensors").items()}
    floats = dict(tensors)
    for name in filter(is_projection, floats):
        stored, floats[name] = quantize(name, tensors.pop(name))
        tensors |= {f"{name.removesuffix('weight')}{end}": part for end, part in stored.items()}
    for folder, held in ((plain, floats), (directory, tensors)):
        lazy = {n: Tensor(a.shape, a.dtype, lambda a=a: a) for n, a in held.items()}
        write_tensors(folder, lazy, max_shard_size)
    config = json.loads((plain / "config.json").read_text())
    text = json.dumps(config | {"quantization_config": quantization})
    (directory / "config.json").write_text(text)
