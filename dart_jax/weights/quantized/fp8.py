"""`quant_method: fp8`: 8-bit floats with a scale per block, as of DeepSeek and Qwen3, or one scale.

A weight [out, in] is stored as float8_e4m3fn under its own name. Beside it is `weight_scale_inv` or
`weight_scale`, by which both kinds of files multiply it: [ceil(out / rows), ceil(in / columns)] for
a `weight_block_size` of [rows, columns], otherwise one number. Experts that are stored in one
tensor have one more axis, and `gate_up_proj_scale_inv`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from dart_jax.errors import UserError
from dart_jax.weights.quantized.layers import FP8, Layer, Method, block_size, refusal, scaled
from dart_jax.weights.safetensors_file import Tensor


@dataclasses.dataclass(frozen=True)
class Fp8(Method):
    """8-bit floats.

    Attributes:
      block: rows and columns that share a scale; None for one scale per matrix.
    """

    block: tuple[int, int] | None

    endings: ClassVar[Mapping[str, str]] = {
        ".weight_scale_inv": ".weight",
        ".weight_scale": ".weight",
        "_proj_scale_inv": "_proj",
    }

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Fp8:
        """Reads a `quantization_config`; raises UserError if it is not supported."""
        for name, supported in (("fmt", (None, "e4m3")), ("expert_dtype", (None, "fp8"))):
            if config.get(name) not in supported:
                raise refusal(f"{name}={config[name]!r}")
        given = config.get("weight_block_size")
        return cls(None if given is None else block_size(given, "weight_block_size"))

    def weight(self, layer: Layer) -> Tensor:
        """As in `Method`."""
        values = layer.need("", (FP8,))
        found = [ending for ending in self.endings if ending in layer.parts]
        if len(found) > 1:
            raise UserError(f"there are both {layer.name(found[0])} and {layer.name(found[1])}")
        # The first one fits all names but those of fused experts.
        expected = list(self.endings)[0 if layer.weight.endswith(".weight") else -1]
        scale = found[0] if found else expected
        block = self.block or (values.shape[-2], values.shape[-1])
        return scaled(layer, values, block, scale)
