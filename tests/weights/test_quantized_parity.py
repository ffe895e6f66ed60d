"""Quantised checkpoints as compressed-tensors itself writes and reads them."""

import os

import jax
import ml_dtypes
import numpy as np
import pytest
from quantized_files import write
from tiny_configs import TARGET, random_params

from dart_jax.weights.checkpoint import load_target

if os.environ.get("DART_REQUIRE_PARITY") == "1":
    import compressed_tensors
    import torch
else:
    compressed_tensors = pytest.importorskip("compressed_tensors")
    torch = pytest.importorskip("torch")
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

GROUPS = {"strategy": "group", "group_size": 16}
BLOCKS = {"strategy": "block", "block_structure": [16, 16]}
CASES = {
    "floats, whole": ("float-quantized", {"type": "float", "strategy": "tensor"}),
    "floats by outputs": ("float-quantized", {"type": "float", "strategy": "channel"}),
    "floats by blocks": ("float-quantized", {"type": "float", **BLOCKS}),
    "integers by outputs": ("int-quantized", {"strategy": "channel"}),
    "integers with zeros": ("int-quantized", {"strategy": "channel", "symmetric": False}),
    "integers, whole": ("naive-quantized", {"strategy": "tensor"}),
    "4 bits by groups": ("pack-quantized", {"num_bits": 4, **GROUPS}),
    "4 bits with zeros": ("pack-quantized", {"num_bits": 4, "symmetric": False, **GROUPS}),
    "8 bits by outputs": ("pack-quantized", {"strategy": "channel"}),
    "2 bits with zeros": ("pack-quantized", {"num_bits": 2, "symmetric": False, **GROUPS}),
}


def blocks(weight, args):
    """The numbers that share a scale, as the last axis: [rows, columns, numbers]."""
    sizes = {
        "tensor": weight.shape,
        "channel": (1, weight.shape[1]),
        "group": (1, args.group_size),
        "block": args.block_structure,
    }
    (rows, columns), (out, size) = sizes[args.strategy], weight.shape
    parts = weight.reshape(out // rows, rows, size // columns, columns)
    return parts.transpose(1, 2).reshape(out // rows, size // columns, -1)


@pytest.mark.parametrize("case", CASES)
def test_compressed_tensors(tmp_path, case):
    form, fields = CASES[case]
    args = QuantizationArgs(**{"num_bits": 8, **fields})
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
    compressor = BaseCompressor.get_value_from_registry(form)

    def quantize(name, weight):
        parts = blocks(torch.tensor(weight), args)
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args)
        state = {"weight": torch.tensor(weight), "weight_scale": scale, "weight_zero_point": zero}
        stored = compressor.compress(state, scheme)
        floats = compressor.decompress(stored, scheme)["weight"]
        assert floats.dtype == torch.float32
        return {end: as_numpy(tensor) for end, tensor in stored.items()}, floats.numpy()

    quantization = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
    }
    write(tmp_path, (TARGET, random_params(TARGET, 3)), quantization, quantize)
    ours, theirs = load_target(tmp_path)[1], load_target(tmp_path / "plain")[1]
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def as_numpy(tensor):
    """A tensor, whose dtype NumPy need not have."""
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    return tensor.numpy()
