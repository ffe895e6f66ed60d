"""`quant_method: awq`: 4-bit integers with zeros, in groups of inputs, as AutoAWQ's GEMM stores.

`qweight` [in, out / 8] and `qzeros` [groups, out / 8] hold eight outputs per 32-bit word, in an
order of their own; `scales` is [groups, out].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dart_jax.errors import UserError
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

_BITS = 4
# Which of eight outputs is in the lowest, second, ... four bits of a word.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclasses.dataclass(frozen=True)
class Awq(Method):
    """4-bit integers.

    Attributes:
      group: inputs that share a scale; -1 for all.
    """

    group: int

    endings: ClassVar[Mapping[str, str]] = {
        ".qweight": ".weight",
        ".qzeros": ".weight",
        ".scales": ".weight",
    }

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Awq:
        """Reads a `quantization_config`; raises UserError if it is not supported."""
        bits = config.get("bits", config.get("w_bit"))
        if bits != _BITS:
            raise refusal(f"quant_method='awq' and bits={bits!r}")
        for name in ("version", "checkpoint_format", "format"):
            version = config.get(name)
            if version is not None and str(version).lower() != "gemm":
                raise refusal(f"quant_method='awq' and {name}={version!r}")
        return cls(positive(config, "group_size" if "group_size" in config else "q_group_size"))

    def weight(self, layer: Layer) -> Tensor:
        """As in `Method`."""
        packed = layer.need_matrix(".qweight", ("int32",))
        size, words = packed.shape
        group = size if self.group == -1 else self.group
        if not size or size % group:
            raise UserError(f"{layer.name('.qweight')} has {size} inputs, in groups of {group}")
        out = words * (32 // _BITS)
        zeros = layer.need(".qzeros", ("int32",), (size // group, words))
        scales = layer.need(".scales", FLOATS, (size // group, out))

        def read() -> np.ndarray:
            return dequantize(
                unpack(packed.read(), _BITS, axis=1, order=_ORDER),
                in_blocks(size, group),
                np.arange(out),
                scales.read(),
                unpack(zeros.read(), _BITS, axis=1, order=_ORDER),
            ).T

        return float_weight((out, size), read)
