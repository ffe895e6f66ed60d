"""The fields of drafters' `config.json`: honoured, refused by name or, where no program reads them,
named in a warning."""

import dataclasses
import re
import warnings

import pytest
from test_config import golden_json

from dart_jax.errors import InputWarning, UserError
from dart_jax.models.config_json.drafter_fields import LAYERS, NORMS
from dart_jax.models.config_json.drafter_formats import is_drafter
from dart_jax.models.drafter_config import Eagle3Config, drafter_config

# As NVIDIA's ModelOpt writes it.
MODELOPT = {
    LAYERS: [],
    "use_aux_hidden_state": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1,
}
# Of published drafters: settings and what the file of weights says.
UNUSED = {
    "attention_bias": False,
    "auto_map": {},
    "fc_norm": False,
    "layer_types": ["full_attention"],
    "mlp_bias": None,
    "pretraining_tp": 1,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "own_embedding": True,
    "qk_norm": True,
}
BOTH = pytest.mark.parametrize("kind", ["drafter", "eagle3"])
SLIDING = {"layer_types": ["sliding_attention"]}


def read(kind="eagle3", **changes):
    return drafter_config(golden_json(kind) | changes)


def speculators(layer=None, **changes):
    """The same drafter in the layout of speculators."""
    plain = golden_json("eagle3")
    outer = {name: plain.pop(name) for name in ("draft_vocab_size", "torch_dtype")}
    del plain["architectures"]
    plain["rope_parameters"] = {"rope_type": "default", "rope_theta": plain.pop("rope_theta")}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "target"}},
        LAYERS: None,
        "target_hidden_size": None,
        "norm_before_residual": False,
        "transformer_layer_config": plain | (layer or {}),
        **outer,
        **changes,
    }


@BOTH
def test_options_that_are_off_are_accepted(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(kind, **UNUSED) == read(kind)
        if kind == "eagle3":
            assert read(eagle_config=MODELOPT) == read(eagle_config=None) == read()


@pytest.mark.parametrize("name", NORMS)
def test_the_norms_of_newer_drafters(name):
    config = read(**{name: True})
    assert config == dataclasses.replace(read(), **{name: True})
    assert Eagle3Config.from_json(config.to_json()) == config
    # DART has none, and in the object no program reads it.
    for kind, changes in [
        ("drafter", {name: True}),
        ("eagle3", {name: "yes"}),
        ("eagle3", {"eagle_config": {name: True}}),
    ]:
        with pytest.raises(UserError, match=f"{name}="):
            read(kind, **changes)


def test_the_layers_that_a_drafter_reads():
    """In `eagle_config` ids name outputs, at the top level the number of layers before."""
    assert read(eagle_config={LAYERS: [1, 5, 9, 3]}).feature_layers == (2, 4, 6, 10)
    both = read(**{LAYERS: [6, 2, 4]}, eagle_config={LAYERS: [1, 3, 5]})
    assert both.feature_layers == (2, 4, 6)
    assert both.features_width == 3 * 64
    for config in (both, read(**{LAYERS: [0, 3]})):
        assert Eagle3Config.from_json(config.to_json()) == config
    assert read(**{LAYERS: []}) == read(eagle_config={LAYERS: []}) == read()
    for ids in ("1, 2", [1.0, 2], [-1, 3], [3, 3], [True, 2]):
        for changes in ({"eagle_config": {LAYERS: ids}}, {LAYERS: ids}):
            with pytest.raises(UserError, match=LAYERS):
                read(**changes)
    with pytest.raises(UserError, match=r"layers \(1, 3\) .* \(2, 4\) in eagle_config"):
        read(**{LAYERS: [1, 3]}, eagle_config={LAYERS: [1, 3]})


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"logit_scale": 0.5},
        {"is_causal": False},
        {"mask_token_id": 7},
        {"partial_rotary_factor": 0.5},
        SLIDING,
        {"sliding_window": 512},
        {"sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]},
        {"use_sliding_window": False, "sliding_window": 9, **SLIDING},
        {"sliding_window": 0},
        {"eagle_config": {"use_input_layernorm_in_first_layer": False}},
        {"eagle_config": {"eagle_decoder_type": "kimik2"}},
        {"use_last_layernorm": False},
        {"eagle_config": "none"},
        {"norm_before_fc": True, "fc_norm": True},
        {"architectures": ["LlamaForCausalLM"], "model_type": "gemma3_text"},
    ],
)
def test_options_that_change_the_computation_are_refused_by_name(changes):
    *_, (name, value) = changes.items()
    name = next(iter(value)) if isinstance(value, dict) else name
    with pytest.raises(UserError, match=name):
        read(**changes)


@BOTH
def test_windows(kind):
    narrow = read(kind, sliding_window=512, **SLIDING)
    assert narrow == read(kind, sliding_window=512, use_sliding_window=True)
    assert narrow == read(kind).with_window(512) != read(kind)
    assert read(kind, sliding_window=512, use_sliding_window=False) == read(kind)
    assert read(kind, sliding_window=512, layer_types=["full_attention"]) == read(kind)
    assert drafter_config(narrow.to_json()) == narrow
    assert not {"sliding_window", "layer_types"} & read(kind).to_json().keys()


@BOTH
def test_unknown_fields_are_named(kind):
    with pytest.warns(InputWarning, match=r"not used: new_gate, zeta$") as seen:
        assert read(kind, zeta=1, new_gate=True) == read(kind)
    assert len(seen) == 1
    with pytest.warns(InputWarning, match=r"not used: eagle_config\.zeta$"):
        read(eagle_config={"zeta": 1})


def test_the_layout_of_speculators():
    assert drafter_config(speculators()) == read()
    changes = {"norm_before_residual": True, "norm_output": True, "fc_norm": True}
    config = drafter_config(speculators(**changes, **{LAYERS: [2, 4, 6, 8]}))
    assert config == dataclasses.replace(read(), **changes, feature_layers=(2, 4, 6, 8))
    # Shapes of the layer itself, and a target of another width.
    layer = {"model_type": "qwen3", "intermediate_size": 80}
    config = drafter_config(speculators(layer, target_hidden_size=96))
    assert (config.target_hidden_size, config.intermediate_size) == (96, 80)


@pytest.mark.parametrize(
    ("json", "message"),
    [
        (speculators(speculators_model_type="peagle"), "speculators_model_type='peagle'"),
        (speculators(transformer_layer_config=None), "no transformer_layer_config"),
        (speculators({"model_type": "gemma"}), "model_type='gemma'"),
        (speculators({"sliding_window": 512}), "sliding_window=512, by which it is not known"),
    ],
)
def test_other_drafters_of_speculators(json, message):
    with pytest.raises(UserError, match=message):
        drafter_config(json)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["DominoDraftModel"]},
        {"architectures": ["Gemma4DSparkModel"], "markov_rank": 256},
        {"pard_token": 0},
        {"parallel_drafting": True},
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"]},
        {"architectures": ["EagleLlamaForCausalLM"]},
        {"model_type": "medusa", "medusa_num_heads": 3},
    ],
)
def test_other_formats_are_refused_by_what_tells_them(changes):
    json = {n: v for n, v in golden_json("eagle3").items() if n != "draft_vocab_size"} | changes
    signs = "|".join(map(re.escape, (f"{name}={value!r}" for name, value in changes.items())))
    with pytest.raises(UserError, match=f"has ({signs}): .* cannot be read"):
        drafter_config(json)
    assert is_drafter(json)


def test_a_target_is_no_drafter():
    assert not is_drafter(golden_json("target"))
    assert is_drafter(golden_json("drafter"))
    assert is_drafter(golden_json("eagle3") | {"architectures": ["LlamaForCausalLM"]})
