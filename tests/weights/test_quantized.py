"""Quantised checkpoints: every format becomes exactly the floats that it stands for."""

import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from quantized_files import fp8, int8, write
from safetensors.numpy import save_file
from tiny_configs import TARGET, random_params

from dart_jax.errors import UserError
from dart_jax.models.config import MoEConfig
from dart_jax.models.rope import Rope
from dart_jax.weights.checkpoint import load_target, save_target
from dart_jax.weights.tensor_files import open_tensors

TARGETS = {
    "qwen3": TARGET,
    "fused": dataclasses.replace(TARGET, model_type="phi3", rope=Rope(1e4, share=0.5)),
    "experts": dataclasses.replace(
        TARGET, model_type="qwen3_moe", moe=MoEConfig(3, 2, 16, norm_topk_prob=True)
    ),
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
BLOCKS = {"weight_block_size": [20, 12]}


def scheme(form, strategy, **weights):
    """An entry of `config_groups`."""
    kind = "float" if form == "float-quantized" else "int"
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, **weights}
    return {"format": form, "targets": ["Linear"], "weights": weights, "input_activations": None}


def compressed(*schemes, **fields):
    groups = {f"group_{i}": entry for i, entry in enumerate(schemes)}
    method = {"quant_method": "compressed-tensors", "format": None, "ignore": ["lm_head"]}
    return {**method, "config_groups": groups, **fields}


def every(function, *args, **kwargs):
    """The same for all layers."""
    return lambda name, weight: function(weight, *args, **kwargs)


def with_scales_of_activations(name, weight):
    stored, floats = fp8(weight, name="weight_scale")
    return stored | {"input_scale": np.float32(3)}, floats


def by_layer(name, weight):
    """Two schemes, and a layer that is not quantised."""
    if ".3." in name:
        return {"weight": weight}, weight
    if "down_proj" in name:
        return int8(weight, (1, weight.shape[1]), zeros=True)
    return fp8(weight, (20, 12), "weight_scale")


BLOCKS_OF_FLOATS = scheme("float-quantized", "block", block_structure=[20, 12])
# Blocks at whose ends layers do not end are among them.
CASES = {
    "fp8": (FP8 | BLOCKS, every(fp8, (20, 12), dtype=ml_dtypes.bfloat16)),
    "fp8, large blocks": (FP8 | {"weight_block_size": [128, 128]}, every(fp8, (128, 128))),
    "fp8, static": (FP8 | {"activation_scheme": "static"}, with_scales_of_activations),
    "integers by groups": (
        compressed(scheme("int-quantized", "group", group_size=16)),
        every(int8, (1, 16), zeros=True),
    ),
    "integers, whole": (
        compressed(scheme("naive-quantized", None)),
        lambda name, weight: int8(weight, weight.shape),
    ),
    "two schemes": (compressed(BLOCKS_OF_FLOATS, scheme("int-quantized", "channel")), by_layer),
}


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def write_case(directory, case, config=TARGET, **options):
    quantization, quantize = CASES[case]
    write(directory, (config, random_params(config, 3)), quantization, quantize, **options)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_that_the_files_stand_for(tmp_path, case):
    write_case(tmp_path, case)
    config, params = load_target(tmp_path)
    assert config == TARGET
    assert_same(params, load_target(tmp_path / "plain")[1])


@pytest.mark.parametrize("kind", ["fused", "experts"])
def test_fused_layers_and_experts(tmp_path, kind):
    write_case(tmp_path, "fp8", TARGETS[kind], max_shard_size=2000)
    assert len(list(tmp_path.glob("model-*"))) > 10
    config, params = load_target(tmp_path, jnp.bfloat16)
    assert config == TARGETS[kind]
    assert_same(params, load_target(tmp_path / "plain", jnp.bfloat16)[1])
    # What is saved is not quantised.
    save_target(tmp_path / "saved", config, params)
    assert "quantization_config" not in (tmp_path / "saved" / "config.json").read_text()
    assert_same(load_target(tmp_path / "saved", jnp.bfloat16)[1], params)


def test_experts_in_one_tensor(tmp_path):
    """Each is a matrix with its own blocks, of which 16 rows are the gate's or the other's."""
    config = TARGETS["experts"]
    block = {"weight_block_size": [16, 12]}
    write(tmp_path, (config, random_params(config, 3)), FP8 | block, every(fp8, (16, 12)))
    path = tmp_path / "model.safetensors"
    stored = {n: t.read() for n, t in open_tensors(tmp_path).tensors.items()}
    for layer in range(config.num_hidden_layers):
        start = f"model.layers.{layer}.mlp.experts."
        for end, to in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            gate, up, down = (
                np.stack([stored.pop(f"{start}{e}.{name}_proj.{end}") for e in range(3)])
                for name in ("gate", "up", "down")
            )
            stored[f"{start}gate_up_proj{to}"] = np.concatenate([gate, up], axis=1)
            stored[f"{start}down_proj{to}"] = down
    save_file(stored, path)
    assert_same(load_target(tmp_path)[1], load_target(tmp_path / "plain")[1])


def test_the_text_part_of_a_vision_language_model(tmp_path):
    write_case(tmp_path, "two schemes")
    stored = {n: t.read() for n, t in open_tensors(tmp_path).tensors.items()}
    start = "model.language_model."
    renamed = {f"{start}{name.removeprefix('model.')}": part for name, part in stored.items()}
    # Of the other part, nothing is checked.
    renamed["model.visual.blocks.0.proj.weight"] = np.ones(3, np.int8)
    save_file(renamed, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "qwen3_vl", "quantization_config": text.pop("quantization_config")}
    outer["text_config"] = text | {"model_type": "qwen3_vl_text"}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    assert_same(load_target(tmp_path)[1], load_target(tmp_path / "plain")[1])


def refused(directory, message):
    with pytest.raises(UserError, match=message) as error:
        load_target(directory)
    assert "\n" not in str(error.value)


UP = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("case", "part", "change", "message"),
    [
        ("fp8", "weight_scale_inv", None, f"{UP}.weight has no tensor of scales in float32"),
        ("fp8", "weight_scale_inv", lambda a: a[1:], rf"{UP}.*inv has shape \(2, 3\), .* fit its"),
        ("fp8", "weight_scale_inv", lambda a: a.astype(int), "has no tensor of scales in float32"),
        ("fp8", "weight", lambda a: a.astype(np.float32), f"unexpected {UP}.weight_scale_inv$"),
        ("fp8", "weight", lambda a: a[0], "weight has shape .* is no matrix$"),
        ("integers by groups", "weight_zero_point", lambda a: a[:5], "zero_point has shape"),
    ],
)
def test_damaged_layers_are_named(tmp_path, case, part, change, message):
    write_case(tmp_path, case)
    tensors = {name: tensor.read() for name, tensor in open_tensors(tmp_path).tensors.items()}
    tensor = tensors.pop(f"{UP}.{part}")
    if change is not None:
        tensors[f"{UP}.{part}"] = np.ascontiguousarray(change(tensor))
    save_file(tensors, tmp_path / "model.safetensors")
    refused(tmp_path, message)


def test_a_missing_shard_is_reported_once(tmp_path):
    write_case(tmp_path, "fp8", max_shard_size=2000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    (tmp_path / index[f"{UP}.weight_scale_inv"]).unlink()
    refused(tmp_path, r"does not fit its config: missing file model-\d+-of-\d+.safetensors$")


INT8 = scheme("int-quantized", "channel")


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        *((({"quant_method": name}), repr(name)) for name in ("awq", "gptq", "mxfp4")),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
        ({"bits": 4}, "None"),
        ("fp8", "damaged fields"),
        (FP8 | {"weight_block_size": [128]}, "damaged fields"),
        (FP8 | {"weight_block_size": [128, 0]}, r"blocks of \[128, 0\]"),
        (compressed(scheme("pack-quantized", "group")), "'pack-quantized'"),
        (compressed(scheme("nvfp4-pack-quantized", "tensor_group")), "'nvfp4-pack-quantized'"),
        (
            compressed(BLOCKS_OF_FLOATS, scheme("int-quantized", "block", block_structure="4x4")),
            r"blocks of \[20, 12\] and 4x4",
        ),
        (compressed(INT8, transform_config={"config_groups": {"a": {}}}), "a transform_config"),
        (FP8 | {"quant_method": "compressed-tensors", "config_groups": [1]}, "damaged fields"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, quantization, message):
    save_target(tmp_path, TARGET, random_params(TARGET, 3))
    json_config = json.loads((tmp_path / "config.json").read_text())
    json_config["quantization_config"] = quantization
    (tmp_path / "config.json").write_text(json.dumps(json_config))
    refused(tmp_path, f"{message}.*, which is not supported; pass the unquantised checkpoint")


# The judge: compressed-tensors itself.

THEIRS = {
    "floats, whole": ("float-quantized", {"type": "float", "strategy": "tensor"}),
    "floats by outputs": ("float-quantized", {"type": "float", "strategy": "channel"}),
    "floats by blocks": (
        "float-quantized",
        {"type": "float", "strategy": "block", "block_structure": [16, 16]},
    ),
    "integers with zeros": ("int-quantized", {"strategy": "channel", "symmetric": False}),
    "integers by groups": ("int-quantized", {"strategy": "group", "group_size": 16}),
    "integers, whole": ("naive-quantized", {"strategy": "tensor"}),
}


@pytest.fixture(scope="module")
def library():
    if os.environ.get("DART_REQUIRE_PARITY") != "1":
        pytest.importorskip("compressed_tensors")
        pytest.importorskip("torch")
    from compressed_tensors import compressors, quantization
    from compressed_tensors.quantization.utils import calculate_qparams

    return compressors.BaseCompressor, quantization, calculate_qparams


def numbers_of_scales(weight, args):
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


@pytest.mark.parametrize("case", THEIRS)
def test_weights_are_those_of_compressed_tensors(tmp_path, library, case):
    import torch

    base, quantization, calculate_qparams = library
    form, fields = THEIRS[case]
    args = quantization.QuantizationArgs(**{"num_bits": 8, **fields})
    group = quantization.QuantizationScheme(targets=["Linear"], weights=args, format=form)
    compressor = base.get_value_from_registry(form)

    def as_numpy(tensor):
        """A tensor, whose dtype NumPy need not have."""
        if tensor.dtype == torch.float8_e4m3fn:
            return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
        return tensor.numpy()

    def quantize(name, weight):
        parts = numbers_of_scales(torch.tensor(weight), args)
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args)
        state = {"weight": torch.tensor(weight), "weight_scale": scale, "weight_zero_point": zero}
        stored = compressor.compress(state, group)
        floats = compressor.decompress(stored, group)["weight"]
        assert floats.dtype == torch.float32
        return {end: as_numpy(tensor) for end, tensor in stored.items()}, floats.numpy()

    config = compressed(group.model_dump(mode="json"), format=form)
    write(tmp_path, (TARGET, random_params(TARGET, 3)), config, quantize)
    assert_same(load_target(tmp_path)[1], load_target(tmp_path / "plain")[1])
