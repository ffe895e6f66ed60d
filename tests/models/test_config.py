"""Configs read from JSON: what is accepted, what is refused, and the round trip."""

import dataclasses
import json

import pytest
import transformers
from conftest import GOLDEN

from dart_jax.errors import UserError
from dart_jax.models.architectures import _VISION_LANGUAGE, ARCHITECTURES
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.drafter_config import DartConfig, Eagle3Config, drafter_config
from dart_jax.models.rope import Rope

KINDS = {"target": TargetConfig, "drafter": DartConfig, "eagle3": Eagle3Config}


def golden_json(kind):
    return json.loads((GOLDEN / "qwen3-draft-vocab" / kind / "config.json").read_text())


def read(kind, **changes):
    return KINDS[kind].from_json(golden_json(kind) | changes)


def moe(**changes):
    """A Qwen3-MoE config."""
    sizes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    kind = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
    return read("target", **kind | sizes | changes)


@pytest.mark.parametrize("kind", KINDS)
def test_written_json_is_read_back(kind):
    config = read(kind, rms_norm_eps=1e-5, rope_theta=12345.0)
    written = json.loads(json.dumps(config.to_json()))
    assert KINDS[kind].from_json(written) == config
    assert hash(KINDS[kind].from_json(written)) == hash(config)


def test_drafter_defaults():
    json = golden_json("drafter")
    del json["draft_vocab_size"], json["rope_theta"]
    config = DartConfig.from_json(json)
    assert (config.draft_vocab_size, config.target_hidden_size) == (512, 64)
    assert read("drafter", target_hidden_size=96).target_hidden_size == 96
    assert config.rope == Rope(1e4)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("target", {"model_type": "gpt2"}, "model_type is 'gpt2'; supported are qwen3, "),
        ("target", {"model_type": None}, "model_type is None"),
        ("target", {"mlp_bias": True}, "mlp_bias=True"),
        ("target", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("target", {"attention_bias": "yes"}, "attention_bias='yes'; it must be true or false"),
        ("target", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("target", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ("target", {"logits_scaling": 8.0}, "logits_scaling=8.0"),
        ("target", {"query_pre_attn_scalar": 256}, "query_pre_attn_scalar=256"),
        ("target", {"no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0]}, "no_rope_layers="),
        ("target", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("target", {"use_mrope": True}, "use_mrope=True"),
        ("target", {"layer_types": ["sliding_attention"]}, "for each of 8 layers"),
        ("target", {"layer_types": ["linear_attention"] * 8}, "for each of 8 layers"),
        ("target", {"layer_types": ["sliding_attention"] * 8}, "other than 'full_attention'"),
        ("target", {"model_type": "qwen3_next"}, "model_type is 'qwen3_next'"),
        (
            "target",
            {"model_type": "llava", "text_config": {"model_type": "llama"}},
            "model_type is 'llava'",
        ),
        (
            "target",
            {"model_type": "mistral3", "text_config": {"model_type": "ministral3"}},
            "model_type is 'ministral3'",
        ),
        ("target", {"rope_scaling": {"rope_type": "yarn"}}, "RoPE scaling 'yarn' lacks factor"),
        ("target", {"rope_scaling": {"rope_type": "longrope"}}, "'longrope' lacks short_factor"),
        ("target", {"rope_parameters": {"rope_type": "yarn"}}, "RoPE scaling 'yarn'"),
        ("target", {"num_attention_heads": 3}, "3 query heads cannot share 2 key/value heads"),
        ("target", {"head_dim": 15}, "even head_dim, got 15"),
        ("drafter", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("drafter", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("drafter", {"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ("drafter", {"draft_length": 0, "shifted": False}, "unshifted drafter needs mask rows"),
        ("drafter", {"rope_scaling": {"type": "linear"}}, "RoPE scaling 'linear' lacks factor"),
        ("drafter", {"draft_length": -1}, "draft_length=-1; it must be an integer of at least 0"),
        ("drafter", {"num_attention_heads": 3}, "3 query heads cannot share 2 key/value heads"),
        ("experts", {"num_experts": None}, "num_experts=None; it must be an integer"),
        ("experts", {"num_experts_per_tok": 7}, "a token to 7 of 6 experts"),
        ("experts", {"num_experts_per_tok": 0}, "num_experts_per_tok=0"),
        ("experts", {"num_experts": "6"}, "num_experts='6'"),
        ("experts", {"norm_topk_prob": 1}, "norm_topk_prob=1"),
        ("experts", {"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
        ("experts", {"num_hidden_layers": "8"}, "num_hidden_layers='8'"),
        ("experts", {"mlp_only_layers": 3}, "mlp_only_layers=3"),
        ("experts", {"use_sliding_window": True}, "use_sliding_window=True"),
        *(
            (kind, {name: wrong}, name)
            for kind in KINDS
            for name, wrong in [
                ("hidden_size", "64"),
                ("head_dim", "16"),
                ("num_key_value_heads", 0),
                ("intermediate_size", 6.5),
                ("vocab_size", -2),
                ("rms_norm_eps", "1e-6"),
            ]
        ),
    ],
)
def test_wrong_and_unsupported_fields_are_refused_by_name(kind, changes, message):
    with pytest.raises(UserError, match=message):
        moe(**changes) if kind == "experts" else read(kind, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_all_missing_fields_are_named(kind):
    json = golden_json(kind)
    del json["head_dim"], json["hidden_size"]
    if kind != "target":
        json["target_hidden_size"] = 64  # the default is the drafter's hidden_size
    with pytest.raises(UserError, match=r"^config\.json lacks hidden_size, head_dim$"):
        KINDS[kind].from_json(json)


def test_kinds_of_drafters_are_distinguished():
    assert isinstance(drafter_config(golden_json("drafter")), DartConfig)
    json = golden_json("eagle3")
    assert isinstance(drafter_config(json), Eagle3Config)
    # The authors publish their checkpoints like this.
    published = json | {"architectures": ["LlamaForCausalLM"]}
    assert drafter_config(published) == drafter_config(json)
    del published["draft_vocab_size"]
    with pytest.raises(UserError, match="it is not a drafter"):
        drafter_config(published)
    with pytest.raises(UserError, match="no draft_length"):
        DartConfig.from_json(json)


def test_experts():
    assert moe().moe == MoEConfig(6, 2, 24, norm_topk_prob=False)
    config = moe(mlp_only_layers=[1], decoder_sparse_step=3, norm_topk_prob=True)
    assert config.moe == MoEConfig(6, 2, 24, True, (0, 1, 3, 4, 6, 7))
    assert [i for i in range(8) if config.is_sparse(i)] == [2, 5]
    assert not any(map(read("target").is_sparse, range(8)))


def test_longest_sequences():
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    mistral["layer_types"] = None
    assert read("target").max_length == 512
    # A window limits what a token sees, not how long a sequence grows.
    assert read("target", **mistral, sliding_window=64).max_length == 512
    yarn = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 256}
    assert read("target", rope_scaling=yarn).max_length == 1024


def windows(config):
    return [config.window(layer) for layer in range(config.num_hidden_layers)]


def test_sliding_windows():
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    assert windows(read("target", sliding_window=64, use_sliding_window=False)) == [None] * 8
    untyped = {"layer_types": None, "sliding_window": 64}
    last = read("target", **untyped, use_sliding_window=True, max_window_layers=5)
    assert windows(last) == [None] * 5 + [64] * 3
    assert last.sliding_layers == (5, 6, 7)
    types = ["sliding_attention", "full_attention"] * 4
    every = read("target", sliding_window=9, use_sliding_window=True, layer_types=types)
    assert windows(every) == [9, None] * 4
    assert windows(read("target", **mistral, **untyped)) == [64] * 8
    assert windows(read("target", **mistral, sliding_window=None)) == [None] * 8
    unnamed = golden_json("target") | mistral
    del unnamed["sliding_window"], unnamed["layer_types"]
    assert windows(TargetConfig.from_json(unnamed)) == [4096] * 8  # the default of transformers
    with pytest.raises(UserError, match="layer_types other than 'sliding_attention'"):
        read("target", **mistral, sliding_window=64, layer_types=types)


# The text part of google/gemma-3-4b-it as in the hub's files: all else is left out.
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}


def test_fields_that_a_vision_language_config_leaves_out(tmp_path):
    config = TargetConfig.from_json(GEMMA3_4B)
    (tmp_path / "config.json").write_text(json.dumps(GEMMA3_4B))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).text_config
    for name in (
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "tie_word_embeddings",
        "query_pre_attn_scalar",
        "final_logit_softcapping",
    ):
        assert getattr(config, name) == getattr(theirs, name), name
    assert config.hidden_act == theirs.hidden_activation
    sliding = [window is not None for window in windows(config)]
    assert sliding == [kind == "sliding_attention" for kind in theirs.layer_types]
    assert config.rope == Rope(1e6, "linear", (("factor", 8.0),))
    assert config.sliding_rope == Rope(1e4)
    ropes = [config.layer_rope(layer) for layer in range(6)]
    assert ropes == [config.sliding_rope] * 5 + [config.rope]


@pytest.mark.parametrize("kind", [*ARCHITECTURES, *_VISION_LANGUAGE.values()])
def test_fields_that_configs_leave_out_are_as_in_transformers(kind):
    """Old files of Llama lack the length, for example."""
    theirs = transformers.CONFIG_MAPPING[kind]()
    names = ("max_position_embeddings", "rms_norm_eps")
    json = {name: value for name, value in theirs.to_dict().items() if name not in names}
    outer = next((outer for outer, text in _VISION_LANGUAGE.items() if text == kind), None)
    if outer is not None and kind not in ARCHITECTURES:
        json = {"model_type": outer, "text_config": json}
    config = TargetConfig.from_json(json)
    for name in names:
        assert getattr(config, name) == getattr(theirs, name)


def test_bases_of_rope_beside_parameters_that_lack_them():
    """As in transformers: by kind of attention, from the older fields."""
    fields = {"rope_theta": 2e4, "rope_local_base_freq": 3e3}
    nested = {"full_attention": {"rope_type": "default"}, "sliding_attention": None}
    text = GEMMA3_4B["text_config"] | fields | {"rope_scaling": None, "rope_parameters": nested}
    theirs = transformers.CONFIG_MAPPING["gemma3_text"](**json.loads(json.dumps(text)))
    config = TargetConfig.from_json(GEMMA3_4B | {"text_config": text})
    assert config.rope.theta == theirs.rope_parameters["full_attention"]["rope_theta"]
    assert config.sliding_rope is not None
    assert config.sliding_rope.theta == theirs.rope_parameters["sliding_attention"]["rope_theta"]


def test_a_drafter_has_a_rope_that_the_reference_computes():
    """It rotates whole heads, and knows no LongRoPE; other scalings are the target's."""
    yarn = read("target", rope_scaling={"type": "yarn", "factor": 2})
    longrope = Rope(1e5, "longrope", (("short_factor", (2.0,) * 4),), share=0.5)
    for rope, expected in [(yarn.rope, yarn.rope), (longrope, Rope(1e5))]:
        target = dataclasses.replace(yarn, rope=rope)
        assert DartConfig.for_target(target, draft_length=7).rope == expected


def test_feature_layers():
    for layers, expected in [(7, (2, 3, 4)), (8, (2, 4, 5)), (9, (2, 4, 6)), (28, (2, 14, 25))]:
        config = read("target", num_hidden_layers=layers, layer_types=None)
        assert config.feature_layers == expected
