"""Configs read from JSON: what is taken, what is refused, and the round trip."""

import dataclasses
import json

import pytest
from conftest import GOLDEN

from dart_jax.config import DrafterConfig, TargetConfig
from dart_jax.errors import UserError

KINDS = {"target": TargetConfig, "drafter": DrafterConfig}


def golden_json(kind):
    return json.loads((GOLDEN / "qwen3-draft-vocab" / kind / "config.json").read_text())


def read(kind, **changes):
    return KINDS[kind].from_json(golden_json(kind) | changes)


def test_golden_target_config(golden):
    assert golden.target == TargetConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        tie_word_embeddings=golden.drafter.draft_vocab_size == 512,
        max_position_embeddings=512,
    )


def test_golden_drafter_config():
    config = read("drafter")
    assert config == DrafterConfig(
        vocab_size=512,
        draft_vocab_size=384,
        hidden_size=64,
        intermediate_size=160,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        draft_length=7,
        target_hidden_size=64,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position_embeddings=512,
    )
    assert config.num_positions == 8


@pytest.mark.parametrize("kind", KINDS)
def test_written_json_is_read_back(kind):
    config = read(kind, rms_norm_eps=1e-5, rope_theta=12345.0)
    written = json.loads(json.dumps(config.to_json()))
    assert KINDS[kind].from_json(written) == config
    assert hash(KINDS[kind].from_json(written)) == hash(config)


@pytest.mark.parametrize(
    ("layers", "expected"), [(7, (2, 3, 4)), (8, (2, 4, 5)), (9, (2, 4, 6)), (28, (2, 14, 25))]
)
def test_feature_layers(layers, expected):
    assert read("target", num_hidden_layers=layers, layer_types=None).feature_layers == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rope_theta_is_found_where_transformers_5_nests_it(kind):
    nested = {"rope_type": "default", "rope_theta": 5e6}
    assert read(kind, rope_theta=1.0, rope_parameters=nested).rope_theta == 5e6
    assert read(kind, rope_scaling={"type": "default"}).rope_theta == 1e6


def test_drafter_defaults():
    json = golden_json("drafter")
    del json["draft_vocab_size"], json["rope_theta"]
    config = DrafterConfig.from_json(json)
    assert (config.draft_vocab_size, config.target_hidden_size) == (512, 64)
    assert read("drafter", target_hidden_size=96).target_hidden_size == 96
    assert config.rope_theta == 1e4


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("target", {"model_type": "llama"}, "model_type is 'llama'"),
        ("target", {"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'"),
        ("target", {"attention_bias": True}, "attention_bias=True"),
        ("target", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("target", {"use_sliding_window": True}, "use_sliding_window=True"),
        ("target", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("target", {"layer_types": ["sliding_attention"]}, "layer_types"),
        ("target", {"num_hidden_layers": 6}, "6 layers.* at least 7"),
        ("target", {"rope_scaling": {"rope_type": "yarn"}}, "RoPE scaling 'yarn'"),
        ("target", {"rope_parameters": {"rope_type": "yarn"}}, "RoPE scaling 'yarn'"),
        ("target", {"num_attention_heads": 3}, "3 query heads cannot share 2 key/value heads"),
        ("target", {"head_dim": 15}, "even head_dim, got 15"),
        ("drafter", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("drafter", {"num_hidden_layers": 2}, "more than one layer"),
        ("drafter", {"rope_scaling": {"type": "linear"}}, "RoPE scaling 'linear'"),
        ("drafter", {"draft_length": -1}, "draft_length=-1; it must be an integer of at least 0"),
        ("drafter", {"num_attention_heads": 3}, "3 query heads cannot share 2 key/value heads"),
    ],
)
def test_what_would_change_the_maths_is_refused_by_name(kind, changes, message):
    with pytest.raises(UserError, match=message):
        read(kind, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_all_missing_fields_are_named(kind):
    json = golden_json(kind)
    del json["head_dim"], json["hidden_size"]
    json["target_hidden_size"] = 64  # a drafter's default is its hidden_size
    with pytest.raises(UserError, match=r"^config\.json lacks hidden_size, head_dim$"):
        KINDS[kind].from_json(json)


def test_a_drafter_of_another_kind_is_refused():
    json = golden_json("drafter")
    del json["draft_length"]
    with pytest.raises(UserError, match="no draft_length"):
        DrafterConfig.from_json(json)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("hidden_size", "64"),
        ("head_dim", None),
        ("num_key_value_heads", 0),
        ("intermediate_size", 6.5),
        ("vocab_size", -2),
        ("rms_norm_eps", "1e-6"),
    ],
)
def test_values_of_a_wrong_kind_are_named(kind, name, wrong):
    with pytest.raises(UserError, match=name):
        read(kind, **{name: wrong})


@pytest.mark.parametrize("kind", KINDS)
def test_configs_are_frozen(kind):
    with pytest.raises(dataclasses.FrozenInstanceError):
        read(kind).vocab_size = 1
