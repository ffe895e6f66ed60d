"""`quant_method: gptq`: 2-, 4- or 8-bit integers with zeros, in groups of inputs.

With n = 32 / bits, `qweight` [in / n, out] holds n inputs per 32-bit word, and `qzeros`
[groups, out / n] n outputs, the first one in the lowest bits; `scales` is [groups, out]. `g_idx`
[in] is the group of each input, for which files without reordered inputs need not have it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dart_jax.weights.quantized.arithmetic import dequantize, in_blocks, unpack
from dart_jax.weights.quantized.layers import (
    FLOATS,
    Layer,
    Method,
    float_weight,
    positive,
    refusal,
)
from dart_jax.weights.safetensors_file import Tensor

_BITS = (2, 4, 8)  # those of which a whole number fills a word in every file's layout
_FORMATS = ("gptq", "gptq_v2")


@dataclasses.dataclass(frozen=True)
class Gptq(Method):
    """Integers.

    Attributes:
      bits: of each.
      group: inputs that share a scale; -1 for all.
      reordered: whether groups are any inputs, which `g_idx` names, not consecutive ones.
      less_one: whether zeros are stored less 1, as in the first version of the format.
    """

    bits: int
    group: int
    reordered: bool
    less_one: bool

    endings: ClassVar[Mapping[str, str]] = {
        ".qweight": ".weight",
        ".qzeros": ".weight",
        ".scales": ".weight",
        ".g_idx": ".weight",
    }

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Gptq:
        """Reads a `quantization_config`; raises UserError if it is not supported."""
        bits = config.get("bits")
        if type(bits) is not int or bits not in _BITS:
            raise refusal(f"quant_method='gptq' and bits={bits!r}")
        name = next((n for n in ("checkpoint_format", "format") if config.get(n)), None)
        version = "gptq" if name is None else config[name]
        if version not in _FORMATS:
            raise refusal(f"quant_method='gptq' and {name}={version!r}")
        if config.get("is_marlin_format"):
            raise refusal("quant_method='gptq' and is_marlin_format=True")
        # Rules by layer; those that begin with a minus name layers that are not quantised.
        if other := [rule for rule in config.get("dynamic") or () if not rule.startswith("-")]:
            raise refusal(f"quant_method='gptq' and the dynamic rule {other[0]!r}")
        group = positive(config, "group_size")
        return cls(bits, group, bool(config.get("desc_act")), version == "gptq")

    def weight(self, layer: Layer) -> Tensor:
        """As in `Method`."""
        packed = layer.need_matrix(".qweight", ("int32",))
        count = 32 // self.bits
        size, out = packed.shape[0] * count, packed.shape[1]
        group = max(size, 1) if self.group == -1 else self.group
        groups = -(-size // group)
        zeros = layer.need(".qzeros", ("int32",), (groups, out // count))
        scales = layer.need(".scales", FLOATS, (groups, out))
        indexed = ".g_idx" in layer.parts or self.reordered
        if indexed:
            layer.need(".g_idx", ("int32", "int64"), (size,))

        def read() -> np.ndarray:
            shifts = unpack(zeros.read(), self.bits, axis=1)
            if self.less_one:
                shifts = (shifts + 1) & ((1 << self.bits) - 1)  # a zero of 0 is stored as -1
            return dequantize(
                unpack(packed.read(), self.bits, axis=0),
                layer.read_groups(".g_idx", size, group) if indexed else in_blocks(size, group),
                np.arange(out),
                scales.read(),
                shifts,
            ).T

        return float_weight((out, size), read)
