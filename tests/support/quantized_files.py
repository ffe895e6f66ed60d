"""Quantised checkpoints, packed as the descriptions of their formats say, and what they stand for.

Each function returns the stored tensors of a layer by the last part of their names, and the float32
weight [out, in] that they stand for.
"""

import json

import ml_dtypes
import numpy as np

from dart_jax.weights.checkpoint import save_target
from dart_jax.weights.safetensors_file import Tensor, open_safetensors
from dart_jax.weights.tensor_files import write_tensors

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(numbers, bits, axis, order=None):
    """Unsigned integers as 32-bit words along an axis, padded with zeros."""
    count = 32 // bits
    rows = np.moveaxis(np.asarray(numbers, np.uint64), axis, 1)
    rows = np.pad(rows, [(0, 0), (0, -rows.shape[1] % count)]).reshape(len(rows), -1, count)
    packed = sum(
        rows[:, :, number] << np.uint64(bits * place)
        for place, number in enumerate(order or range(count))
    )
    return np.ascontiguousarray(np.moveaxis(packed.astype(np.uint32).view(np.int32), 1, axis))


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


def integers(weight, bits, group, zeros=True, reordered=False):
    """Unsigned integers [out, in], zeros and scales [out, groups], each input's group, and what
    they stand for. All codes and zeros occur."""
    rng, (out, size) = np.random.default_rng(2), weight.shape
    index = np.arange(size) // (size if group == -1 else group)
    if reordered:
        rng.shuffle(index)
    scales = rng.uniform(0.5, 1, (out, index.max() + 1)) * 4 * weight.std() / 2**bits
    scales = scales.astype(np.float16)
    middle = np.full(scales.shape, 2 ** (bits - 1))
    shifts = rng.integers(0, 2**bits, scales.shape) if zeros else middle
    values = np.rint(weight / scales[:, index]) + shifts[:, index]
    values = np.clip(values, 0, 2**bits - 1).astype(int)
    floats = (values - shifts[:, index]).astype(np.float32) * scales[:, index].astype(np.float32)
    return values, shifts, scales, index.astype(np.int32), floats


def awq(weight, group):
    """AutoAWQ's, for its GEMM."""
    values, shifts, scales, _, floats = integers(weight, 4, group)
    stored = {
        "qweight": words(values.T, 4, 1, AWQ_ORDER),
        "qzeros": words(shifts.T, 4, 1, AWQ_ORDER),
        "scales": scales.T,
    }
    return stored, floats


def gptq(weight, bits, group, less_one=True, reordered=False, index=True):
    """AutoGPTQ's, whose first version stores zeros less 1; its older files have biases of 0."""
    values, shifts, scales, groups, floats = integers(weight, bits, group, reordered=reordered)
    stored = {
        "qweight": words(values.T, bits, 0),
        "qzeros": words((shifts.T - less_one) % 2**bits, bits, 1),
        "scales": scales.T,
        "bias": np.zeros(len(weight), np.float16),
    }
    return stored | ({"g_idx": groups} if index else {}), floats


def packed(weight, bits, group, zeros=False, reordered=False):
    """compressed-tensors' pack-quantized."""
    values, shifts, scales, groups, floats = integers(weight, bits, group, zeros, reordered)
    stored = {
        "weight_packed": words(values, bits, 1),
        "weight_scale": scales,
        "weight_shape": np.array(weight.shape),
    }
    if zeros:
        stored["weight_zero_point"] = words(shifts, bits, 0)
    if reordered:
        stored["weight_g_idx"] = groups
    return stored, floats


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
