"""The `config.json` of block drafters: what is read, and what is refused by name."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from dart_jax.errors import UserError
from dart_jax.models.config_json.drafter_formats import is_drafter
from dart_jax.models.drafter_config import BlockConfig, drafter_config

GOLDENS = Path(__file__).parents[1] / "weights/block_drafters"


def golden(name, nested=None, layers=None, **changes):
    """A golden's config with changes; None removes a field."""
    config = json.loads((GOLDENS / name / "config.json").read_text()) | changes
    for inner, fields in (("dflash_config", nested), ("transformer_layer_config", layers)):
        if fields is not None:
            config[inner] = config.get(inner, {}) | fields
    return {name: value for name, value in config.items() if value is not None}


NARROW = {"layer_types": 2 * ["sliding_attention"], "sliding_window": 9, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("json", "message"),
    [
        (golden("dspark", markov_head_type="rnn"), "markov_head_type='rnn'"),
        (golden("dflash", {"projector_type": "domino"}), "projector_type='domino'"),
        (golden("dflash", architectures=["DominoDraftModel"]), "DominoDraftModel"),
        (golden("dspark", model_type="gemma4_text"), "model_type='gemma4_text'"),
        (golden("jetspec", {"target_hidden_size": 64}), "target_hidden_size=64"),
        (golden("dflash", attention_bias=True), "attention_bias=True"),
        (golden("dflash", is_causal="no"), "is_causal='no'"),
        (golden("dflash", layer_types=[{}, {}]), "layer_types="),
        (golden("dflash", layer_types=["full_attention"]), "layer_types="),
        (golden("dflash", max_window_layers="x"), "max_window_layers='x'"),
        (golden("specforge_dspark", {"confidence_head_alpha": "x"}), "head_alpha='x'"),
        (golden("dflash", partial_rotary_factor=0.5), "partial_rotary_factor"),
        (golden("dflash2", {"conv_kernel_size": 3}), "conv_kernel_size=3"),
        (golden("dspark", output_multiplier=0.5), "output_multiplier=0.5"),
        (golden("dflash2", {"output_multiplier": 0}), "output_multiplier=0"),
        (
            golden("dflash", {"use_swa": True}, zeta=1),
            "not known here: dflash_config.use_swa, zeta",
        ),
        (golden("dflash", {"layer_types": [], "head_dim": 8}), "dflash_config.layer_types"),
        (golden("dflash", projector_type="dspark"), "not known here: projector_type"),
        (golden("dflash", quantization_config={}), "quantization_config"),
        (golden("speculators_dspark", input_embedding_scale=2), "input_embedding_scale=2"),
        (golden("speculators_dspark", layers={"attn_gate": 1}), "not known here: attn_gate"),
        (golden("speculators_dspark", transformer_layer_config=7), "transformer_layer_config"),
        (golden("speculators_dflash", layers=NARROW), "windows speculators counts"),
        (golden("dflash_sliding", use_sliding_window=False), "no sliding_window"),
        (golden("dflash_sliding", sliding_window=None), "no sliding_window"),
        (golden("dflash", {"mask_token_id": 97}), "mask_token_id=97"),
        (golden("dflash", {"mask_token_id": None}), "mask_token_id=None"),
        (golden("dflash", {"target_layer_ids": [4, 1]}), r"target_layer_ids=\[4, 1\]"),
        (golden("dspark", target_layer_ids=None), "target_layer_ids=None"),
        (golden("speculators_dspark", aux_hidden_state_layer_ids=[-1]), r"layer_ids=\[-1\]"),
        (golden("dflash", block_size=1), "block_size"),
        (golden("dflash", dflash_config=[1]), r"dflash_config=\[1\]"),
        (golden("specforge_dspark", {"markov_rank": 0}), "confidence_head_with_markov"),
        (golden("dflash2", {"conv_group_size": 5}), "conv_group_size"),
        (golden("dflash", num_hidden_layers=None), "num_hidden_layers"),
    ],
)
def test_what_is_refused_in_one_line(json, message):
    with pytest.raises(UserError, match=message) as raised:
        drafter_config(json)
    assert "\n" not in str(raised.value)
    assert is_drafter(json)


def test_kinds():
    for name, kind in [("dflash_sliding", "DFlash"), ("jetspec", "JetSpec"), ("dspark", "DSpark")]:
        assert drafter_config(golden(name)).kind == kind
    assert drafter_config(golden("dflash2")).kind == "DFlash2"
    # Without a block of shifted rows, it has pair scores all the same.
    assert drafter_config(golden("speculators_dspark", sample_from_anchor=False)).kind == "DSpark"


def test_a_draft_without_pair_scores_needs_no_confidence_of_them():
    config = drafter_config(
        golden("speculators_dspark", markov_rank=0, confidence_head_with_markov=None)
    )
    assert (config.pair_rank, config.confidence) == (0, "hidden")


def test_what_the_layouts_leave_out():
    read = drafter_config(golden("dflash"))
    assert read == drafter_config(golden("dflash", {"target_hidden_size": 32}, zeta=None))
    # z-lab's older module spreads the layers evenly.
    without = golden("dflash", num_target_layers=36, num_hidden_layers=5, layer_types=None)
    del without["dflash_config"]["target_layer_ids"]
    assert drafter_config(without).feature_layers == (2, 10, 18, 26, 34)
    without["num_hidden_layers"] = 1
    assert drafter_config(without).feature_layers == (19,)
    # A file of SpecForge may name the confidence head by its weight in the loss alone.
    named = golden("specforge_dspark")
    del named["dflash_config"]["enable_confidence_head"]
    assert drafter_config(named) == drafter_config(golden("specforge_dspark"))
    named["architectures"] = ["DFlashDraftModel"]
    assert drafter_config(named) == drafter_config(golden("specforge_dspark"))
    # Without types of layers, Qwen3's config has windows from `max_window_layers` on.
    window = {"sliding_window": 6, "layer_types": None, "max_window_layers": 1}
    assert drafter_config(golden("dflash", **window)).sliding_layers == ()
    config = drafter_config(golden("dflash", **window, use_sliding_window=True))
    assert (config.sliding_layers, config.causal_layers) == ((1,), (1,))
    # The embeddings may be features, and a bound of 0 is none.
    assert drafter_config(golden("dflash", {"target_layer_ids": [-1]})).feature_layers == (0,)
    scaled = drafter_config(golden("dflash2_scaled", {"final_logit_softcapping": 0}))
    assert scaled.final_logit_softcapping is None


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDENS.iterdir() if path.is_dir()))
def test_configs_are_written_in_their_layout(name):
    config = drafter_config(golden(name))
    assert BlockConfig.from_json(config.to_json()) == config
    # As a file on the disk has it.
    assert drafter_config(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("layout", "changes", "lost"),
    [
        ("deepspec", {"shifted": False}, "shifted"),
        ("dflash", {"shifted": True}, "shifted"),
        ("dflash", {"draft_vocab_size": 50}, "draft_vocab_size"),
        ("deepspec", {"shifted": True, "output_multiplier": 0.5}, "output_multiplier"),
        ("specforge", {"shifted": True, "causal_layers": (0,)}, "causal_layers"),
        ("speculators", {"causal_layers": (0, 1)}, "causal_layers"),
        ("dflash", {"pair_rank": 4, "pair_gate": "residual"}, "pair_gate"),
    ],
)
def test_a_layout_without_a_place_for_a_field(layout, changes, lost):
    config = dataclasses.replace(drafter_config(golden("dflash")), layout=layout, **changes)
    with pytest.raises(UserError, match=re.escape(f"{layout!r} has no place for {lost} of")):
        config.to_json()
