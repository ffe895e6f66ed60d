"""Quantised checkpoints: 8-bit numbers with scales, read as the floats that they stand for.

The numbers of a weight [out, in], float8_e4m3fn or int8, have the weight's own name. Beside them
are scales, by which they are multiplied (`.._scale_inv` or `.._scale`), and perhaps zeros, which
are subtracted first (`.._zero_point`): one number, one for each output [out, 1], for groups of
inputs [out, in / group], or for blocks [ceil(out / rows), ceil(in / columns)]. Experts that are
stored in one tensor have one more axis. So store `fp8`, as of DeepSeek and Qwen3, and the 8-bit
formats of compressed-tensors. Numbers of fewer bits, packed into words, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.safetensors_file import Tensor
from dart_jax.weights.tensor_files import TensorFiles

_METHODS = ("fp8", "compressed-tensors")
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized")  # of compressed-tensors
_STRATEGIES = (None, "tensor", "channel", "group", "block")
_NUMBERS = ("float8_e4m3fn", "int8")
_SCALES = ("float32", "bfloat16", "float16")
_BESIDE = re.compile(r"(.*(?:\.weight|_proj))(?:_scale_inv|_scale|_zero_point)")
# Of activations, and of keys and values in a cache: both stay floats here, more exact than in
# programs that round them, too.
_UNUSED = re.compile(r".*\.(activation_scale|((in|out)put|[kqv])_(scale|zero_point))")


class Quantization(NamedTuple):
    """The method by which a checkpoint's files are quantised.

    Attributes:
      block: outputs and inputs that share a scale; None where no weights are scaled by blocks.
    """

    block: tuple[int, int] | None = None


def read_quantization(json: Mapping[str, Any]) -> Quantization | None:
    """Reads from a model's `config.json` how its files are quantised; None if they are not.

    Raises:
      UserError: by a method, or with options of it, that cannot be read.
    """
    inner = json.get("text_config")
    places = (json, inner if isinstance(inner, dict) else {})
    names = ("quantization_config", "compression_config")  # the latter in old files
    config = next((place[n] for place in places for n in names if place.get(n)), None)
    if config is None:
        if json.get("quantization"):
            raise _refusal("MLX's quantization")
        return None
    method = config.get("quant_method") if isinstance(config, dict) else None
    if method == "bitsandbytes" and not (config.get("load_in_4bit") or config.get("load_in_8bit")):
        return None
    if method not in _METHODS:
        raise _refusal(f"quant_method={method!r} ({' and '.join(_METHODS)} are supported)")
    try:
        if method == "fp8":
            size = config.get("weight_block_size")
            return Quantization(None if size is None else _block(size, "weight_block_size"))
        return _compressed(config)
    except (AttributeError, KeyError, TypeError) as error:
        raise _refusal(f"damaged fields ({error})") from None


def _compressed(config: Mapping[str, Any]) -> Quantization:
    """Reads the config of compressed-tensors."""
    sparse = (config.get("sparsity_config") or {}).get("format") or "dense"
    if sparse != "dense":
        raise _refusal(f"sparsity_config={sparse!r}")
    if (config.get("transform_config") or {}).get("config_groups"):
        raise _refusal("a transform_config")
    blocks = set()
    schemes = [each for each in (config.get("config_groups") or {}).values() if each.get("weights")]
    for scheme in schemes:
        form, weights = scheme.get("format") or config.get("format"), scheme["weights"]
        if form not in _FORMATS:
            raise _refusal(f"format={form!r} ({', '.join(_FORMATS)} are supported)")
        if weights.get("strategy") not in _STRATEGIES:
            raise _refusal(f"strategy={weights['strategy']!r}")
        if weights.get("strategy") == "block":
            blocks.add(_block(weights.get("block_structure"), "block_structure"))
    if not schemes or len(blocks) > 1:
        raise _refusal("no config_groups with weights" if not schemes else "several block sizes")
    return Quantization(*blocks)


def _block(size: object, name: str) -> tuple[int, int]:
    """Reads the rows and columns of a block; raises UserError for anything else."""
    numbers = size.split("x") if isinstance(size, str) else size
    try:
        rows, columns = map(int, numbers)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        rows = columns = 0
    if rows < 1 or columns < 1:
        raise _refusal(f"{name}={size!r}")
    return rows, columns


def dequantized(files: TensorFiles, quantization: Quantization) -> TensorFiles:
    """Returns the files' tensors with floats in the place of quantised weights and their scales.

    Each is converted to float32 when it is read. Which weights are quantised is read off their
    dtypes. Those with missing or misshapen scales are added to `problems` and `lost`.
    """
    weights = {n for n, tensor in files.tensors.items() if tensor.dtype.name in _NUMBERS}
    lost = {_weight_of(name) for name in files.lost}
    tensors, problems = {}, list(files.problems)
    for name, tensor in files.tensors.items():
        weight = _weight_of(name)
        if weight in lost or _UNUSED.fullmatch(name) or (weight != name and weight in weights):
            continue
        if name not in weights:
            tensors[name] = tensor
            continue
        try:
            tensors[name] = _floats(files.tensors, name, quantization.block)
        except UserError as problem:
            problems.append(str(problem))
            lost.add(name)
    return TensorFiles(files.path, tensors, problems, lost)


def _weight_of(name: str) -> str:
    """The weight to which a tensor belongs; other tensors' own names."""
    match = _BESIDE.fullmatch(name)
    return match[1] if match else name


def _floats(tensors: Mapping[str, Tensor], name: str, block: tuple[int, int] | None) -> Tensor:
    """The weight of a name, float32 [.., out, in]; raises UserError if its scales do not fit.

    Programs that multiply in float16 or bfloat16 round the products, which is left to the reader.
    """
    values = tensors[name]
    names = [f"{name}{end}" for end in ("_scale_inv", "_scale") if f"{name}{end}" in tensors]
    if len(names) != 1:
        raise UserError(f"{name} has {'two tensors of' if names else 'no'} scales")
    scales, zeros = tensors[names[0]], tensors.get(f"{name}_zero_point")
    if scales.dtype.name not in _SCALES:
        raise UserError(f"{names[0]} has dtype {scales.dtype}, not one of {', '.join(_SCALES)}")
    if len(values.shape) < 2 or 0 in values.shape:
        raise UserError(f"{name} has shape {values.shape}, which is no matrix")
    (rows, columns), grid = _grid(names[0], scales, values, block)
    if zeros is not None and _no_ones(zeros.shape) != _no_ones(grid):
        raise UserError(f"{name}_zero_point has shape {zeros.shape}, {names[0]} {scales.shape}")

    def read() -> np.ndarray:
        floats = values.read().astype(np.float32)
        factors = scales.read().astype(np.float32).reshape(grid)
        shifts = None if zeros is None else zeros.read().astype(np.float32).reshape(grid)
        for *expert, row in np.ndindex(grid[:-1]):  # no memory for scales of all numbers
            part = floats[(*expert, slice(row * rows, (row + 1) * rows))]
            if shifts is not None:
                part -= shifts[(*expert, row)].repeat(columns)[: part.shape[1]]
            part *= factors[(*expert, row)].repeat(columns)[: part.shape[1]]
        return floats

    return Tensor(values.shape, np.dtype(np.float32), read)


def _grid(
    name: str, scales: Tensor, values: Tensor, block: tuple[int, int] | None
) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Returns the rows and columns that share a scale, and the shape [.., r, c] of the scales."""
    *experts, out, size = values.shape
    group = size // max(1, *scales.shape[-1:]) or 1
    for rows, columns in [*([block] if block else []), (out, size), (1, size), (1, group)]:
        grid = (*experts, -(-out // rows), -(-size // columns))
        if _no_ones(grid) == _no_ones(scales.shape):
            return (rows, columns), grid
    raise UserError(
        f"{name} has shape {scales.shape}, which does not fit its weight of shape {values.shape}"
        + (f" in blocks of {block}" if block else "")
    )


def _no_ones(shape: tuple[int, ...]) -> list[int]:
    """A shape without the axes that some programs leave out."""
    return [size for size in shape if size != 1]


def _refusal(what: str) -> UserError:
    return UserError(
        f"config.json has a quantization_config with {what}, which is not supported; pass the "
        "unquantised checkpoint (weights_dtype='int8' rounds it when it is loaded) or a GGUF file "
        "of the model, or remove the field if the files hold floats"
    )
