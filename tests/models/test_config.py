"""Configs read from JSON: what is accepted, what is refused, and the round trip."""

import dataclasses
import json

import pytest
import transformers
from conftest import GOLDEN

from dart_jax.errors import UserError
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config, drafter_config
from dart_jax.models.rope import Rope

KINDS = {"target": TargetConfig, "drafter": DrafterConfig, "eagle3": Eagle3Config}


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
        rope=Rope(1e6),
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
        rope=Rope(1e6),
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
    assert read(kind, rope_theta=1.0, rope_parameters=nested).rope == Rope(5e6)
    assert read(kind, rope_scaling={"type": "default"}).rope == Rope(1e6)


def test_drafter_defaults():
    json = golden_json("drafter")
    del json["draft_vocab_size"], json["rope_theta"]
    config = DrafterConfig.from_json(json)
    assert (config.draft_vocab_size, config.target_hidden_size) == (512, 64)
    assert read("drafter", target_hidden_size=96).target_hidden_size == 96
    assert config.rope == Rope(1e4)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("target", {"model_type": "gpt2"}, "model_type is 'gpt2'; supported are qwen3, "),
        ("target", {"model_type": None}, "model_type is None"),
        (
            "target",
            {"model_type": "llama"},
            "'Qwen3ForCausalLM'.*'llama'.*'LlamaForCausalLM'",
        ),
        ("target", {"mlp_bias": True}, "mlp_bias=True"),
        ("target", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("target", {"attention_bias": True}, "attention_bias=True"),
        ("target", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("target", {"use_sliding_window": True}, "use_sliding_window=True"),
        ("target", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("target", {"layer_types": ["sliding_attention"]}, "layer_types"),
        ("target", {"rope_scaling": {"rope_type": "yarn"}}, "RoPE scaling 'yarn' lacks factor"),
        ("target", {"rope_scaling": {"rope_type": "longrope"}}, "RoPE scaling 'longrope'"),
        ("target", {"rope_parameters": {"rope_type": "yarn"}}, "RoPE scaling 'yarn'"),
        ("target", {"num_attention_heads": 3}, "3 query heads cannot share 2 key/value heads"),
        ("target", {"head_dim": 15}, "even head_dim, got 15"),
        ("drafter", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("drafter", {"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ("drafter", {"draft_length": 0, "shifted": False}, "unshifted drafter needs mask rows"),
        ("drafter", {"rope_scaling": {"type": "linear"}}, "RoPE scaling 'linear' lacks factor"),
        ("eagle3", {"norm_before_residual": True}, "norm_before_residual=True"),
        ("eagle3", {"num_hidden_layers": 2}, "more than one layer"),
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


def test_kinds_of_drafters_are_distinguished():
    assert isinstance(drafter_config(golden_json("drafter")), DrafterConfig)
    json = golden_json("eagle3")
    assert isinstance(drafter_config(json), Eagle3Config)
    # The authors publish their checkpoints like this.
    published = json | {"architectures": ["LlamaForCausalLM"]}
    assert drafter_config(published) == drafter_config(json)
    del published["draft_vocab_size"]
    with pytest.raises(UserError, match="it is not a drafter"):
        drafter_config(published)
    with pytest.raises(UserError, match="no draft_length"):
        DrafterConfig.from_json(json)


def moe(**changes):
    """A Qwen3-MoE config."""
    json = golden_json("target") | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    }
    return TargetConfig.from_json(json | changes)


def test_experts():
    assert moe().moe == MoEConfig(6, 2, 24, norm_topk_prob=False)
    config = moe(mlp_only_layers=[1], decoder_sparse_step=3, norm_topk_prob=True)
    assert config.moe == MoEConfig(6, 2, 24, True, (0, 1, 3, 4, 6, 7))
    assert [i for i in range(8) if config.is_sparse(i)] == [2, 5]
    assert not any(map(read("target").is_sparse, range(8)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": None}, "num_experts=None; it must be an integer"),
        ({"num_experts_per_tok": 7}, "a token to 7 of 6 experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok=0"),
        ({"num_experts": "6"}, "num_experts='6'"),
        ({"norm_topk_prob": 1}, "norm_topk_prob=1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
        ({"num_hidden_layers": "8"}, "num_hidden_layers='8'"),
        ({"mlp_only_layers": 3}, "mlp_only_layers=3"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
    ],
)
def test_wrong_experts_are_named(changes, message):
    with pytest.raises(UserError, match=message):
        moe(**changes)


def test_longest_sequences():
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    assert read("target").max_length == 512
    assert read("target", sliding_window=64, use_sliding_window=False).max_length == 512
    assert read("target", **mistral, sliding_window=64).max_length == 64
    assert read("target", **mistral, sliding_window=None).max_length == 512
    unnamed = golden_json("target") | mistral | {"max_position_embeddings": 9999}
    del unnamed["sliding_window"]
    assert TargetConfig.from_json(unnamed).max_length == 4096  # the default of transformers
    yarn = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 256}
    assert read("target", rope_scaling=yarn).max_length == 1024


TRANSFORMERS = {
    "Qwen3": {
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0},
    },
    "Qwen3Moe": {"mlp_only_layers": [2], "moe_intermediate_size": 24, "num_experts": 9},
    "Llama": {
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False},
    },
    "Mistral": {"sliding_window": 17},
    "Mixtral": {"num_local_experts": 3, "rope_theta": 5e5},
}


@pytest.mark.parametrize(("kind", "changes"), TRANSFORMERS.items(), ids=list(TRANSFORMERS))
def test_configs_go_to_transformers_and_back(kind, changes, tmp_path):
    shape = {"num_hidden_layers": 7, "head_dim": 16, "vocab_size": 300, "num_attention_heads": 8}
    shape |= {"num_key_value_heads": 2, "intermediate_size": 100, "max_position_embeddings": 99}
    theirs = getattr(transformers, f"{kind}Config")(**shape, **changes)
    ours = TargetConfig.from_json(json.loads(theirs.to_json_string()))
    assert ours.head_dim == 16
    (tmp_path / "config.json").write_text(json.dumps(ours.to_json()))
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    # We write explicitly what transformers leaves at its defaults.
    rope = {**theirs.rope_parameters}
    assert {name: again.rope_parameters[name] for name in rope} == rope
    skipped = ("rope_parameters", "architectures", "transformers_version", "dtype")
    skipped += ("bos_token_id", "eos_token_id", "pad_token_id")
    for name, value in theirs.to_dict().items():
        if name not in skipped and not name.startswith("_"):
            assert getattr(again, name) == value, name
    assert TargetConfig.from_json(json.loads(again.to_json_string())) == ours


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("hidden_size", "64"),
        ("head_dim", "16"),
        ("num_key_value_heads", 0),
        ("intermediate_size", 6.5),
        ("vocab_size", -2),
        ("rms_norm_eps", "1e-6"),
    ],
)
def test_values_of_a_wrong_type_are_named(kind, name, wrong):
    with pytest.raises(UserError, match=name):
        read(kind, **{name: wrong})


@pytest.mark.parametrize("kind", KINDS)
def test_configs_are_frozen(kind):
    with pytest.raises(dataclasses.FrozenInstanceError):
        read(kind).vocab_size = 1
