"""`quant_method: compressed-tensors`, as llm-compressor writes: 8-bit floats, and integers.

A layer's scheme says how many weights share a number of `weight_scale` and, if integers have zeros,
of `weight_zero_point`: all (1 number), those of an output ([out, 1]), groups of inputs
([out, in / group]) or blocks ([ceil(out / rows), ceil(in / columns)]). Numbers of 8 bits are stored
as `weight` [out, in]. In the format pack-quantized, `weight_packed` [out, ceil(in / n)] holds
n = 32 / bits integers per 32-bit word, the first one in the lowest bits, each plus 2 ** (bits - 1);
so does `weight_zero_point` [ceil(out / n), groups], along its first axis. `weight_shape` is the
shape without padding, and `weight_g_idx` [in] the group of each input if inputs were reordered.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.quantized.arithmetic import dequantize, in_blocks, unpack
from dart_jax.weights.quantized.layers import (
    FLOATS,
    FP8,
    Layer,
    Method,
    block_size,
    blocks,
    float_weight,
    positive,
    refusal,
    scaled,
)
from dart_jax.weights.safetensors_file import Tensor

_PACKED = "pack-quantized"
# Format -> the types and bits that it can store.
_NUMBERS = {
    "float-quantized": {"float": (8,)},
    "int-quantized": {"int": (2, 3, 4, 5, 6, 7, 8)},
    "naive-quantized": {"float": (8,), "int": (2, 3, 4, 5, 6, 7, 8)},
    _PACKED: {"int": (2, 4, 8)},
}
_SCALE, _ZEROS = ".weight_scale", ".weight_zero_point"
_SHAPE, _GROUPS = ".weight_shape", ".weight_g_idx"


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How the layers of a group are stored.

    Attributes:
      targets: names of layers, "re:" and a regular expression, or classes of PyTorch.
      format: one of those that compressed-tensors names.
      kind: "float" or "int".
      bits: of a number.
      block: outputs and inputs that share a scale; -1 for all.
    """

    targets: tuple[str, ...]
    format: str
    kind: str
    bits: int
    block: tuple[int, int]

    @classmethod
    def from_json(cls, group: Mapping[str, Any], default: object) -> Scheme:
        """Reads an entry of `config_groups`; raises UserError if it is not supported.

        Args:
          group: the entry.
          default: the format of entries without one.
        """
        weights, form = group["weights"], group.get("format") or default
        if not isinstance(form, str) or form not in _NUMBERS:
            raise refusal(f"quant_method='compressed-tensors' and format={form!r}")
        kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
        if bits not in _NUMBERS[form].get(kind, ()):
            raise refusal(f"format={form!r}, type={kind!r} and num_bits={bits!r}")
        targets = tuple(group.get("targets") or ())
        for target in targets:
            if target.startswith("re:"):
                try:
                    re.compile(target[3:])
                except re.error:
                    raise refusal(f"the target {target!r}") from None
        return cls(targets, form, kind, bits, _block(weights))

    def sizes(self, out: int, size: int) -> tuple[int, int]:
        """The outputs and inputs that share a scale, of a weight [out, size]."""
        rows, columns = self.block
        return out if rows == -1 else rows, size if columns == -1 else columns

    def matches(self, module: str) -> bool:
        """Whether the scheme names a layer, not only its class."""
        return any(
            re.match(target.removeprefix("re:"), module) is not None
            if target.startswith("re:")
            else target == module
            for target in self.targets
        )


def _block(weights: Mapping[str, Any]) -> tuple[int, int]:
    """Reads the outputs and inputs that share a scale; -1 for all."""
    strategy, group = weights.get("strategy"), weights.get("group_size")
    if strategy is None:
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    if strategy == "tensor":
        return -1, -1
    if strategy == "channel":
        return 1, -1
    if strategy == "group":
        return 1, positive(weights, "group_size")
    if strategy == "block":
        return block_size(weights.get("block_structure"), "block_structure")
    raise refusal(f"quant_method='compressed-tensors' and strategy={strategy!r}")


@dataclasses.dataclass(frozen=True)
class CompressedTensors(Method):
    """One or more schemes."""

    schemes: tuple[Scheme, ...]

    endings: ClassVar[Mapping[str, str]] = {
        ".weight_packed": ".weight",
        _SCALE: ".weight",
        _ZEROS: ".weight",
        _SHAPE: ".weight",
        _GROUPS: ".weight",
    }

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> CompressedTensors:
        """Reads a `quantization_config`; raises UserError if it is not supported."""
        sparse = (config.get("sparsity_config") or {}).get("format") or "dense"
        if sparse != "dense":
            raise refusal(f"quant_method='compressed-tensors' and sparsity_config={sparse!r}")
        if (config.get("transform_config") or {}).get("config_groups"):
            raise refusal("quant_method='compressed-tensors' and a transform_config")
        groups = (config.get("config_groups") or {}).values()
        default = config.get("format")
        schemes = tuple(Scheme.from_json(g, default) for g in groups if g.get("weights"))
        if not schemes:
            raise refusal("quant_method='compressed-tensors' and no config_groups with weights")
        return cls(schemes)

    def weight(self, layer: Layer) -> Tensor:
        """As in `Method`."""
        scheme = self._scheme(layer)
        if scheme.format == _PACKED:
            return _packed(layer, scheme)
        values = layer.need("", (FP8 if scheme.kind == "float" else "int8",))
        return scaled(layer, values, scheme.sizes(*values.shape[-2:]), _SCALE, _ZEROS)

    def _scheme(self, layer: Layer) -> Scheme:
        """The scheme of a layer: the one that names it, or the one for all others of its class."""
        module = layer.weight.removesuffix(".weight")
        for scheme in self.schemes:
            if scheme.matches(module):
                return scheme
        general = [scheme for scheme in self.schemes if "Linear" in scheme.targets]
        # With one scheme only, names of another version of the model are no reason to fail.
        if len(general) == 1 or len(self.schemes) == 1:
            return (general or list(self.schemes))[0]
        raise UserError(f"no entry of config_groups is for {module}")


def _packed(layer: Layer, scheme: Scheme) -> Tensor:
    """The weight of a layer that is stored in 32-bit words."""
    bits, count, offset = scheme.bits, 32 // scheme.bits, 1 << (scheme.bits - 1)
    packed = layer.need_matrix(".weight_packed", ("int32",))
    out, words = packed.shape
    size = words * count
    if _SHAPE in layer.parts:
        stored = layer.need(_SHAPE, ("int32", "int64"), (2,)).read()
        size = int(stored[1])
        if stored[0] != out or -(-size // count) != words:
            raise UserError(
                f"{layer.name(_SHAPE)} is {stored.tolist()}, which does not fit a packed weight of "
                f"shape {packed.shape}"
            )
    rows, columns = scheme.sizes(out, size)
    shape = blocks((out, size), (rows, columns))
    scales = layer.need(_SCALE, FLOATS, shape)
    zeros = None
    if _ZEROS in layer.parts:
        # In older files they are not packed.
        words_of_zeros = layer.parts[_ZEROS].dtype.name == "int32"
        expected = (-(-shape[0] // count), shape[1]) if words_of_zeros else shape
        zeros = layer.need(_ZEROS, ("int8", "int32"), expected)
    if _GROUPS in layer.parts:
        layer.need(_GROUPS, ("int32", "int64"), (size,))

    def signed(words: np.ndarray, axis: int) -> np.ndarray:
        unsigned = unpack(words, bits, axis)
        unsigned -= np.uint8(offset)  # wraps around
        return unsigned.view(np.int8)

    def read() -> np.ndarray:
        shifts = None if zeros is None else zeros.read()
        if shifts is not None and shifts.dtype == np.int32:
            shifts = signed(shifts, axis=0)[: shape[0]]
        grouped = _GROUPS in layer.parts
        return dequantize(
            signed(packed.read(), axis=1)[:, :size],
            in_blocks(out, rows),
            layer.read_groups(_GROUPS, size, columns) if grouped else in_blocks(size, columns),
            scales.read(),
            shifts,
        )

    return float_weight((out, size), read)
