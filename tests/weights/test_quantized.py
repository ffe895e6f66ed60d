"""Quantised checkpoints: every format becomes exactly the floats that it stands for."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiny_model
from quantized_files import awq, fp8, gptq, int8, packed, write
from safetensors.numpy import save_file
from tiny_configs import TARGET, random_params

from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.models.config import MoEConfig
from dart_jax.models.rope import Rope
from dart_jax.weights.checkpoint import load_target, read_target_config, save_target
from dart_jax.weights.quantized.methods import dequantized, quantization_method
from dart_jax.weights.tensor_files import open_tensors

TARGETS = {
    "qwen3": TARGET,
    "fused": dataclasses.replace(TARGET, model_type="phi3", rope=Rope(1e4, share=0.5)),
    "experts": dataclasses.replace(
        TARGET, model_type="qwen3_moe", moe=MoEConfig(3, 2, 16, norm_topk_prob=True)
    ),
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": False}


def scheme(form, strategy, bits=8, **weights):
    """An entry of `config_groups`."""
    kind = "float" if form == "float-quantized" else "int"
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, **weights}
    return {"format": form, "targets": ["Linear"], "weights": weights, "input_activations": None}


def compressed(*schemes, **fields):
    groups = {f"group_{i}": entry for i, entry in enumerate(schemes)}
    form = schemes[0]["format"] if schemes else None
    method = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return {**method, "config_groups": groups, **fields}


def every(function, *args, **kwargs):
    """The same for all layers."""
    return lambda name, weight: function(weight, *args, **kwargs)


def by_outputs(name, weight):
    return int8(weight, (1, weight.shape[1]), zeros=True)


def by_layer(name, weight):
    """Two schemes."""
    return packed(weight, 8, -1) if "down_proj" in name else packed(weight, 4, 16)


def with_scales_of_activations(name, weight):
    stored, floats = fp8(weight, name="weight_scale")
    return stored | {"input_scale": np.float32(3)}, floats


BFLOAT16 = ml_dtypes.bfloat16
BY_LAYER = compressed(
    scheme("pack-quantized", "group", 4, group_size=16),
    scheme("pack-quantized", "channel") | {"targets": ["re:.*down_proj$"]},
)
# Blocks, groups and words at whose ends layers do not end are among them.
CASES = {
    "fp8": (FP8 | {"weight_block_size": [20, 12]}, every(fp8, (20, 12))),
    "fp8, bfloat16": (FP8 | {"weight_block_size": [20, 12]}, every(fp8, (20, 12), dtype=BFLOAT16)),
    "fp8, large blocks": (FP8 | {"weight_block_size": [128, 128]}, every(fp8, (128, 128))),
    "fp8, whole": (FP8 | {"weight_block_size": None}, every(fp8)),
    "fp8, static": (FP8 | {"activation_scheme": "static"}, with_scales_of_activations),
    "floats, whole": (
        compressed(scheme("float-quantized", "tensor")),
        every(fp8, name="weight_scale"),
    ),
    "floats by outputs": (
        compressed(scheme("float-quantized", "channel")),
        lambda name, weight: fp8(weight, (1, weight.shape[1]), "weight_scale", BFLOAT16),
    ),
    "floats by blocks": (
        compressed(scheme("float-quantized", "block", block_structure=[20, 12])),
        every(fp8, (20, 12), "weight_scale"),
    ),
    "integers by outputs": (compressed(scheme("int-quantized", "channel")), by_outputs),
    "integers, whole": (
        compressed(scheme("naive-quantized", None)),
        lambda name, weight: int8(weight, weight.shape),
    ),
    "packed": (
        compressed(scheme("pack-quantized", "group", 4, group_size=16)),
        every(packed, 4, 16),
    ),
    "packed, zeros": (
        compressed(scheme("pack-quantized", "group", 4, group_size=16)),
        every(packed, 4, 16, zeros=True),
    ),
    "packed, reordered": (
        compressed(scheme("pack-quantized", "group", 4, group_size=16, actorder="group")),
        every(packed, 4, 16, zeros=True, reordered=True),
    ),
    "packed, 8 bits": (compressed(scheme("pack-quantized", "channel")), every(packed, 8, -1)),
    "packed, two schemes": (BY_LAYER, by_layer),
    "awq": (AWQ, every(awq, 16)),
    "awq, whole": (AWQ | {"group_size": -1, "version": "GEMM"}, every(awq, -1)),
    "gptq": (GPTQ, every(gptq, 4, 16)),
    "gptq, version 2": (
        GPTQ | {"checkpoint_format": "gptq_v2"},
        every(gptq, 4, 16, less_one=False, index=False),
    ),
    "gptq, reordered": (GPTQ | {"desc_act": True}, every(gptq, 4, 16, reordered=True)),
    "gptq, 8 bits": (GPTQ | {"bits": 8, "group_size": -1}, every(gptq, 8, -1)),
    "gptq, 2 bits": (GPTQ | {"bits": 2}, every(gptq, 2, 16)),
}


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def made(directory, case, config=TARGET, **options):
    quantization, quantize = CASES[case]
    write(directory, (config, random_params(config, 3)), quantization, quantize, **options)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_that_the_files_stand_for(tmp_path, case):
    made(tmp_path, case)
    config, params = load_target(tmp_path)
    assert config == TARGET
    assert_same(params, load_target(tmp_path / "plain")[1])


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("case", ["fp8", "packed, zeros", "awq", "gptq"])
@pytest.mark.parametrize("kind", ["fused", "experts"])
def test_fused_layers_and_experts(tmp_path, case, kind):
    made(tmp_path, case, TARGETS[kind], max_shard_size=2000)
    assert len(list(tmp_path.glob("model-*"))) > 10
    config, params = load_target(tmp_path, jnp.bfloat16)
    assert config == TARGETS[kind]
    assert_same(params, load_target(tmp_path / "plain", jnp.bfloat16)[1])
    # What is saved is not quantised.
    save_target(tmp_path / "saved", config, params)
    assert "quantization_config" not in (tmp_path / "saved" / "config.json").read_text()
    assert_same(load_target(tmp_path / "saved", jnp.bfloat16)[1], params)


def test_experts_in_one_tensor(tmp_path):
    """Each is a matrix with its own blocks."""
    config = TARGETS["experts"]
    made(tmp_path, "fp8", config)
    path = tmp_path / "model.safetensors"
    stored = {n: t.read() for n, t in open_tensors(tmp_path).tensors.items()}
    for layer in range(config.num_hidden_layers):
        start = f"model.layers.{layer}.mlp.experts."
        for end, to in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            gate, up, down = (
                np.stack([stored.pop(f"{start}{e}.{name}_proj.{end}") for e in range(3)])
                for name in ("gate", "up", "down")
            )
            # 16 outputs each: a block of 16 rows is the gate's or the other's.
            stored[f"{start}gate_up_proj{to}"] = np.concatenate([gate, up], axis=1)
            stored[f"{start}down_proj{to}"] = down
    save_file(stored, path)
    json_config = json.loads((tmp_path / "config.json").read_text())
    json_config["quantization_config"]["weight_block_size"] = [16, 12]
    for name in [name for name in stored if name.endswith("_scale_inv")]:
        values = stored[name.removesuffix("_scale_inv")]
        shape = (*values.shape[:-2], -(-values.shape[-2] // 16), -(-values.shape[-1] // 12))
        stored[name] = np.random.default_rng(0).uniform(0.01, 0.02, shape).astype(np.float32)
    save_file(stored, path)
    (tmp_path / "config.json").write_text(json.dumps(json_config))
    experts = load_target(tmp_path)[1]["layers"][2]["mlp"]["experts"]
    name = "model.layers.2.mlp.experts.gate_up_proj"
    factors = stored[f"{name}_scale_inv"].repeat(16, 1).repeat(12, 2)[:, :, :32]
    expected = stored[name].astype(np.float32) * factors
    np.testing.assert_array_equal(experts["gate_proj"], expected[:, :16].swapaxes(1, 2))
    np.testing.assert_array_equal(experts["up_proj"], expected[:, 16:].swapaxes(1, 2))


@pytest.mark.parametrize("case", ["fp8", "integers by outputs", "packed, reordered", "awq", "gptq"])
def test_tensors_are_read_when_they_are_needed(tmp_path, case):
    made(tmp_path, case)
    files, read = open_tensors(tmp_path), []

    def watched(name, tensor):
        return tensor._replace(read=lambda: read.append(name) or tensor.read())

    tensors = {name: watched(name, tensor) for name, tensor in files.tensors.items()}
    method = quantization_method({"quantization_config": CASES[case][0]})
    assert method is not None
    ours = dequantized(files._replace(tensors=tensors), method).tensors
    assert {name.rsplit(".", 1)[1] for name in read} <= {"weight_shape"}
    read.clear()
    ours["model.layers.3.mlp.up_proj.weight"].read()
    assert read
    assert all(name.startswith("model.layers.3.mlp.up_proj.") for name in read)


def test_layers_that_are_not_quantised_are_read_as_they_are(tmp_path):
    def some(name, weight):
        return fp8(weight, (20, 12)) if ".3." in name else ({"weight": weight}, weight)

    target = (TARGET, random_params(TARGET, 3))
    fields = {
        "weight_block_size": [20, 12],
        "modules_to_not_convert": ["model.layers.0", "lm_head"],
    }
    write(tmp_path, target, FP8 | fields, some)
    assert_same(load_target(tmp_path)[1], load_target(tmp_path / "plain")[1])


def test_the_text_part_of_a_vision_language_model(tmp_path):
    made(tmp_path, "packed, two schemes")
    stored = {n: t.read() for n, t in open_tensors(tmp_path).tensors.items()}
    start = "model.language_model."
    renamed = {f"{start}{name.removeprefix('model.')}": part for name, part in stored.items()}
    # Of the other part, nothing is checked.
    renamed["model.visual.blocks.0.proj.weight_packed"] = np.ones(3, np.int32)
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
        ("fp8", "weight_scale_inv", None, f"missing {UP}.weight_scale_inv$"),
        ("fp8", "weight_scale_inv", lambda a: a[1:], rf"{UP}.*inv has shape \(2, 3\).*\(3, 3\)$"),
        ("fp8", "weight_scale_inv", lambda a: a.astype(int), "has dtype int64, not float32 or "),
        ("fp8", "weight", lambda a: a.astype(np.float32), "has dtype float32, not float8_e4m3fn$"),
        ("fp8", "weight", lambda a: a[0], "weight has shape .* is no matrix$"),
        ("integers by outputs", "weight_scale", None, f"missing {UP}.weight_scale$"),
        ("integers by outputs", "weight_zero_point", lambda a: a[:5], "zero_point has shape"),
        ("packed, zeros", "weight_packed", None, f"missing {UP}.weight_packed$"),
        ("packed, zeros", "weight_zero_point", lambda a: a[:5], "zero_point has shape"),
        ("packed, zeros", "weight_shape", lambda a: a + 1, r"shape is \[49, 33\], which does not"),
        ("packed, reordered", "weight_g_idx", lambda a: a + 1, "g_idx names groups 1 to 2"),
        ("packed, reordered", "weight_g_idx", lambda a: a[1:], r"g_idx has shape \(31,\)"),
        ("awq", "qzeros", None, f"missing {UP}.qzeros$"),
        ("awq", "scales", lambda a: a[:1], r"scales has shape \(1, 48\).*\(2, 48\)$"),
        ("awq", "qweight", lambda a: a[:-1], "qweight has 31 inputs, in groups of 16"),
        ("gptq", "scales", None, f"missing {UP}.scales$"),
        ("gptq", "g_idx", lambda a: a * 2, "g_idx names groups 0 to 2, .* of 2$"),
        ("gptq, reordered", "g_idx", None, f"missing {UP}.g_idx$"),
        ("gptq", "bias", np.ones_like, f"unexpected {UP}.bias$"),
    ],
)
def test_damaged_layers_are_named(tmp_path, case, part, change, message):
    made(tmp_path, case)
    path = tmp_path / "model.safetensors"
    tensors = {name: tensor.read() for name, tensor in open_tensors(tmp_path).tensors.items()}
    tensor = tensors.pop(f"{UP}.{part}")
    if change is not None:
        tensors[f"{UP}.{part}"] = np.ascontiguousarray(change(tensor))
    save_file(tensors, path)
    refused(tmp_path, message)


def test_a_missing_shard_is_reported_once(tmp_path):
    made(tmp_path, "fp8", max_shard_size=2000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    (tmp_path / index[f"{UP}.weight_scale_inv"]).unlink()
    refused(tmp_path, r"does not fit its config: missing file model-\d+-of-\d+.safetensors$")


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
        ({"quant_method": "mxfp4"}, "'mxfp4'"),
        ({"bits": 4}, "None"),
        ("fp8", "None"),
        (FP8 | {"fmt": "e5m2"}, "'e5m2'"),
        (FP8 | {"weight_block_size": [128]}, r"weight_block_size=\[128\]"),
        (FP8 | {"weight_block_size": 0}, "weight_block_size=0"),
        (AWQ | {"bits": 8}, "'awq' and bits=8"),
        (AWQ | {"version": "gemv"}, "'awq' and version='gemv'"),
        (AWQ | {"group_size": 0}, "group_size=0"),
        (GPTQ | {"bits": 3}, "'gptq' and bits=3"),
        (GPTQ | {"checkpoint_format": "marlin"}, "'gptq' and checkpoint_format='marlin'"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format"),
        (GPTQ | {"dynamic": {"-:.*gate": {}, "+:.*up": {"bits": 8}}}, r"rule '\+:\.\*up'"),
        (compressed(), "no config_groups"),
        (compressed(scheme("nvfp4-pack-quantized", "tensor_group", 4)), "'nvfp4-pack-quantized'"),
        (compressed(scheme("marlin-24", "group", 4)), "'marlin-24'"),
        (compressed(scheme("pack-quantized", "group", 3, group_size=16)), "num_bits=3"),
        (compressed(scheme("pack-quantized", "group", 4)), "group_size=None"),
        (compressed(scheme("int-quantized", "token")), "strategy='token'"),
        (compressed(scheme("float-quantized", "block")), "block_structure=None"),
        (compressed(scheme("int-quantized", "channel") | {"targets": ["re:("]}), r"'re:\('"),
        (
            compressed(
                scheme("int-quantized", "channel"),
                sparsity_config={"format": "sparse-24-bitmask"},
            ),
            "sparsity_config='sparse-24-bitmask'",
        ),
        (
            compressed(
                scheme("int-quantized", "channel"), transform_config={"config_groups": {"a": {}}}
            ),
            "a transform_config",
        ),
        (FP8 | {"quant_method": "compressed-tensors", "config_groups": [1]}, "damaged fields"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, quantization, message):
    save_target(tmp_path, TARGET, random_params(TARGET, 3))
    json_config = json.loads((tmp_path / "config.json").read_text())
    json_config["quantization_config"] = quantization
    (tmp_path / "config.json").write_text(json.dumps(json_config))
    refused(tmp_path, f"{message}.*, which is not supported; pass the unquantised checkpoint")
    with pytest.raises(UserError, match="quantization_config"):
        read_target_config(tmp_path)


def test_layers_of_no_scheme(tmp_path):
    made(tmp_path, "packed, two schemes")
    json_config = json.loads((tmp_path / "config.json").read_text())
    groups = json_config["quantization_config"]["config_groups"]
    groups["group_0"]["targets"] = ["re:.*gate_proj$"]
    (tmp_path / "config.json").write_text(json.dumps(json_config))
    refused(tmp_path, "no entry of config_groups is for model.layers.0.self_attn.q_proj")


@pytest.mark.long
def test_drafting_emits_what_plain_decoding_does(tmp_path, tmp_path_factory):
    tiny = tiny_model.make(tmp_path_factory.getbasetemp())
    target = load_target(tiny.target)
    write(tmp_path, target, FP8 | {"weight_block_size": [40, 30]}, every(fp8, (40, 30)))
    shutil.copy(tiny.target / "tokenizer.json", tmp_path)
    shutil.copy(tiny.target / "generation_config.json", tmp_path)
    model = DartModel.from_pretrained(tmp_path, tiny.drafter, tiny.ngram)
    plain, drafted = (model.decoder(nodes=nodes, max_length=60) for nodes in (0, 8))
    expected = plain(tiny.prompts, 12)
    assert [row.tolist() for row in drafted(tiny.prompts, 12).tokens] == [
        row.tolist() for row in expected.tokens
    ]
    # The original's logits differ: the weights are those of the file.
    assert not np.array_equal(
        load_target(tmp_path)[1]["layers"][0]["mlp"]["up_proj"]["kernel"],
        target[1]["layers"][0]["mlp"]["up_proj"]["kernel"],
    )
