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
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "layer_types": None}
TYPES = ["sliding_attention", "full_attention"] * 4


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


WRONG = {
    "hidden_size": "64",
    "head_dim": 15,
    "num_attention_heads": 3,
    "num_key_value_heads": 0,
    "intermediate_size": 6.5,
    "vocab_size": -2,
    "rms_norm_eps": "1e-6",
    "hidden_act": "relu",
}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {name: wrong}) for kind in KINDS for name, wrong in WRONG.items()),
        ("target", {"model_type": "gpt2"}),
        ("target", {"model_type": "llava", "text_config": {"model_type": "llama"}}),
        ("target", {"mlp_bias": True}),
        ("target", {"partial_rotary_factor": 0.5}),
        ("target", {"attention_bias": "yes"}),
        ("target", {"use_bidirectional_attention": True}),
        ("target", {"logits_scaling": 8.0}),
        ("target", {"query_pre_attn_scalar": 256}),
        ("target", {"no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0]}),
        ("target", {"layer_types": ["full_attention"]}),
        ("target", {"layer_types": ["linear_attention"] * 8}),
        ("target", {"layer_types": ["sliding_attention"] * 8}),
        ("target", {"sliding_window": 9, **MISTRAL, "layer_types": TYPES}),
        ("drafter", {"quantization_config": {"bits": 4}}),
        ("drafter", {"shifted": False, "draft_length": 0}),
        ("drafter", {"draft_length": -1}),
        ("experts", {"num_experts": None}),
        ("experts", {"num_experts_per_tok": 7}),
        ("experts", {"norm_topk_prob": 1}),
        ("experts", {"decoder_sparse_step": 0}),
        ("experts", {"num_hidden_layers": "8"}),
        ("experts", {"mlp_only_layers": 3}),
        ("experts", {"use_sliding_window": True}),
    ],
)
def test_wrong_and_unsupported_fields_are_refused_by_name(kind, changes):
    *_, name = changes
    names = {"num_attention_heads": "query heads", "num_experts_per_tok": "routes a token"}
    name = "model_type" if "text_config" in changes else names.get(name, name)
    with pytest.raises(UserError, match=name):
        moe(**changes) if kind == "experts" else read(kind, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_all_missing_fields_are_named(kind):
    json = golden_json(kind)
    del json["vocab_size"], json["hidden_size"]
    if kind != "target":
        json["target_hidden_size"] = 64  # the default is the drafter's hidden_size
    with pytest.raises(UserError, match=r"^config\.json lacks vocab_size, hidden_size"):
        KINDS[kind].from_json(json)


def test_kinds_of_drafters_are_distinguished():
    json = golden_json("drafter")
    del json["draft_vocab_size"], json["rope_theta"]
    config = drafter_config(json)
    assert isinstance(config, DartConfig)
    assert (config.draft_vocab_size, config.target_hidden_size) == (512, 64)
    assert config.rope == Rope(1e4)
    json = golden_json("eagle3")
    # The authors publish their checkpoints like this.
    published = json | {"architectures": ["LlamaForCausalLM"]}
    assert drafter_config(published) == drafter_config(json) == Eagle3Config.from_json(json)
    del published["draft_vocab_size"]
    with pytest.raises(UserError, match="it is not a drafter"):
        drafter_config(published)


def test_experts():
    assert moe().moe == MoEConfig(6, 2, 24, norm_topk_prob=False)
    config = moe(mlp_only_layers=[1], decoder_sparse_step=3, norm_topk_prob=True)
    assert config.moe == MoEConfig(6, 2, 24, True, (0, 1, 3, 4, 6, 7))
    assert [i for i in range(8) if config.is_sparse(i)] == [2, 5]


def test_longest_sequences():
    # A window limits what a token sees, not how long a sequence grows.
    assert read("target", **MISTRAL, sliding_window=64).max_length == 512
    yarn = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 256}
    assert read("target", rope_scaling=yarn).max_length == 1024


def windows(config):
    return [config.window(layer) for layer in range(config.num_hidden_layers)]


def test_sliding_windows():
    for fields, expected in [
        ({"sliding_window": 64, "use_sliding_window": False}, [None] * 8),
        (
            {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 5}
            | {"layer_types": None},
            [None] * 5 + [6] * 3,
        ),
        ({"sliding_window": 9, "use_sliding_window": True, "layer_types": TYPES}, [9, None] * 4),
        (MISTRAL | {"sliding_window": 64}, [64] * 8),
        (MISTRAL | {"sliding_window": None}, [None] * 8),
    ]:
        assert windows(read("target", **fields)) == expected


@pytest.mark.parametrize("kind", [*ARCHITECTURES, *_VISION_LANGUAGE.values()])
def test_fields_that_configs_leave_out_are_as_in_transformers(kind):
    """Old files of Llama lack the length, for example."""
    theirs = transformers.CONFIG_MAPPING[kind]()
    outer = next((outer for outer, text in _VISION_LANGUAGE.items() if text == kind), None)
    names = {"max_position_embeddings", "rms_norm_eps", "rope_parameters", "layer_types"}
    if kind in ARCHITECTURES:
        names |= {*ARCHITECTURES[kind].defaults}
    json = {name: value for name, value in theirs.to_dict().items() if name not in names}
    if outer is not None:
        json = {"model_type": outer, "text_config": json}
    config = TargetConfig.from_json(json)
    for name in names & {field.name for field in dataclasses.fields(TargetConfig)}:
        assert getattr(config, name) == getattr(theirs, name), name
    types = getattr(theirs, "layer_types", None)
    if types is not None:
        sliding = [window is not None for window in windows(config)]
        assert sliding == [kind == "sliding_attention" for kind in types]
    ropes = theirs.rope_parameters
    if "sliding_attention" in ropes:
        assert config.rope.theta == ropes["full_attention"]["rope_theta"]
        assert (config.sliding_rope or config.rope).theta == ropes["sliding_attention"][
            "rope_theta"
        ]
    else:
        assert config.rope.theta == ropes["rope_theta"]


def test_bases_of_rope_beside_parameters_that_lack_them():
    """As in transformers: by kind of attention, from the older fields."""
    nested = {"full_attention": {"rope_type": "default"}, "sliding_attention": None}
    fields = {"rope_theta": 2e4, "rope_local_base_freq": 3e3, "rope_parameters": nested}
    kind = transformers.CONFIG_MAPPING["gemma3_text"]
    text = {name: v for name, v in kind().to_dict().items() if name[:4] != "rope"} | fields
    theirs = kind(**json.loads(json.dumps(text))).rope_parameters
    config = TargetConfig.from_json({"model_type": "gemma3", "text_config": text})
    assert config.rope.theta == theirs["full_attention"]["rope_theta"]
    assert config.sliding_rope is not None
    assert config.sliding_rope.theta == theirs["sliding_attention"]["rope_theta"]


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
