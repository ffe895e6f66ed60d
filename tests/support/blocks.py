"""Random weights in the blocks of GGUF's types."""

import gguf
import numpy as np

from dart_jax.models.kernels.tiles import BLOCK_TYPES

TYPES = sorted(BLOCK_TYPES)


def block_size(type):
    """Weights and bytes of a block."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]


def random_blocks(rng, type, out, inputs, scale=0.01):
    """Blocks of weights [out, inputs], uint8 [out, bytes]: any bytes are, but for the numbers in
    float16, of which these are near `scale`."""
    weights, size = block_size(type)
    blocks = rng.integers(0, 256, (out, inputs // weights, size), np.uint8)
    first = 208 if type == "Q6_K" else 0
    for at in (first, 2) if type[-2:] == "_1" or type in ("Q4_K", "Q5_K") else (first,):
        numbers = rng.uniform(0.5, 1, blocks.shape[:2]) * scale
        blocks[..., at : at + 2] = numbers.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(out, -1)


def dequantized(type, rows):
    """The weights of blocks, float32 [out, inputs], by the package of GGUF's authors."""
    return gguf.dequantize(rows, gguf.GGMLQuantizationType[type])
