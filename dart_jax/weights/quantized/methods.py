"""Turns the tensors of a quantised checkpoint into those of an ordinary one, as they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.weights.quantized.awq import Awq
from dart_jax.weights.quantized.compressed_tensors import CompressedTensors
from dart_jax.weights.quantized.fp8 import Fp8
from dart_jax.weights.quantized.gptq import Gptq
from dart_jax.weights.quantized.layers import Layer, Method, refusal
from dart_jax.weights.tensor_files import TensorFiles

# `quant_method` -> what reads the rest of the config.
_METHODS: dict[str, Callable[[Mapping[str, Any]], Method]] = {
    "fp8": Fp8.from_json,
    "compressed-tensors": CompressedTensors.from_json,
    "awq": Awq.from_json,
    "gptq": Gptq.from_json,
}
# Of activations, and of keys and values in a cache: both stay floats here, more exact than in
# programs that round them, too.
_UNUSED = (
    ".activation_scale",
    ".input_scale",
    ".input_zero_point",
    ".output_scale",
    ".output_zero_point",
    ".k_scale",
    ".k_zero_point",
    ".q_scale",
    ".v_scale",
    ".v_zero_point",
)
_STORED = ("float8_e4m3fn", "int8")


def quantization_method(json: Mapping[str, Any]) -> Method | None:
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
            raise UserError(
                "config.json has MLX's quantization, which is not supported; pass the unquantised "
                "checkpoint (weights_dtype='int8' rounds it when it is loaded)"
            )
        return None
    method = config.get("quant_method") if isinstance(config, dict) else None
    read = _METHODS.get(method) if isinstance(method, str) else None
    if method == "bitsandbytes" and not (config.get("load_in_4bit") or config.get("load_in_8bit")):
        return None
    if read is None:
        raise refusal(f"quant_method={method!r} ({', '.join(_METHODS)} are supported)")
    try:
        return read(config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise refusal(f"damaged fields ({error})") from None


def dequantized(files: TensorFiles, method: Method) -> TensorFiles:
    """Returns the files' tensors with one float tensor, `..weight`, for each quantised layer.

    Nothing is read but the shapes that some formats store: each tensor is converted when it is
    read, to float32. Which layers are quantised is read off the tensors, so lists of other layers
    in the config are not needed. Layers with missing or misshapen tensors are added to
    `problems` and `lost`.
    """
    layers: dict[str, Layer] = {}
    for name, tensor in files.tensors.items():
        if not name.endswith(_UNUSED):
            weight, ending = method.split(name)
            layer = layers.setdefault(weight, Layer(weight, {}, method.endings))
            layer.parts[ending] = tensor
    lost = {method.split(name)[0] for name in files.lost}
    whole = TensorFiles(files.path, {}, list(files.problems), lost)
    for name, layer in layers.items():
        if name in lost:
            continue
        if layer.parts.keys() == {""} and layer.parts[""].dtype.name not in _STORED:
            whole.tensors[name] = layer.parts[""]
            continue
        try:
            whole.tensors[name] = method.weight(layer)
        except UserError as problem:
            whole.problems.append(str(problem))
            lost.add(name)
    return whole
