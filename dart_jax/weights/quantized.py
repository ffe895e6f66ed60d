"""Quantised checkpoints: 8-bit numbers with scales, read as the floats that they stand for.

The numbers of a weight [.., out, in], float8_e4m3fn or int8, have the weight's own name. Beside
them are scales, by which they are multiplied (`.._scale_inv` or `.._scale`), and perhaps zeros,
which are subtracted first (`.._zero_point`): one number, one for each output [.., out, 1], for
groups of inputs [.., out, in / group], or for blocks [.., ceil(out / rows), ceil(in / columns)].
So store `fp8`, as of DeepSeek and Qwen3, and the 8-bit formats of compressed-tensors. Numbers of
fewer bits, packed into words, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.safetensors_file import Tensor
from dart_jax.weights.tensor_files import TensorFiles

_FORMATS = ("float-quantized", "int-quantized", "naive-quantized")  # of compressed-tensors
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
    try:
        method = config.get("quant_method")
        if method == "bitsandbytes" and not any(
            config.get(name) for name in ("load_in_4bit", "load_in_8bit")
        ):
            return None
        if method == "fp8":
            sizes = [config.get("weight_block_size")]
        elif method == "compressed-tensors":
            sizes = _block_structures(config)
        else:
            raise _refusal(f"quant_method={method!r} (fp8 and compressed-tensors are supported)")
        numbers = [
            size.split("x") if isinstance(size, str) else size for size in sizes if size is not None
        ]
        blocks = {(int(rows), int(columns)) for rows, columns in numbers}
    except (AttributeError, TypeError, ValueError) as error:
        raise _refusal(f"damaged fields ({error})") from None
    if len(blocks) > 1 or any(min(block) < 1 for block in blocks):
        raise _refusal(f"blocks of {' and '.join(map(str, sizes))}")
    return Quantization(*blocks)


def _block_structures(config: Mapping[str, Any]) -> list[Any]:
    """Reads from the config of compressed-tensors in which blocks each scheme scales weights."""
    if (config.get("transform_config") or {}).get("config_groups"):
        raise _refusal("a transform_config")
    groups = (config.get("config_groups") or {}).values()
    schemes = [scheme for scheme in groups if scheme.get("weights")]
    for scheme in schemes:
        form = scheme.get("format") or config.get("format")
        if form not in _FORMATS:
            raise _refusal(f"format={form!r} ({', '.join(_FORMATS)} are supported)")
    return [scheme["weights"].get("block_structure") for scheme in schemes]


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
    if len(names) != 1 or tensors[names[0]].dtype.name not in _SCALES:
        raise UserError(f"{name} has no tensor of scales in {', '.join(_SCALES)}")
    if len(values.shape) < 2 or 0 in values.shape:
        raise UserError(f"{name} has shape {values.shape}, which is no matrix")
    scales, zeros = tensors[names[0]], tensors.get(f"{name}_zero_point")
    (rows, columns), grid = _grid(names[0], scales, values, block)
    if zeros is not None and _no_ones(zeros.shape) != _no_ones(grid):
        raise UserError(f"{name}_zero_point has shape {zeros.shape}, {names[0]} {scales.shape}")

    def spread(numbers: Tensor) -> np.ndarray:
        """One number for each of the weight's."""
        *_, out, size = values.shape
        by_row = numbers.read().astype(np.float32).reshape(grid).repeat(rows, axis=-2)
        return by_row[..., :out, :].repeat(columns, axis=-1)[..., :size]

    def read() -> np.ndarray:
        floats = values.read().astype(np.float32)
        if zeros is not None:
            floats -= spread(zeros)
        floats *= spread(scales)
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
