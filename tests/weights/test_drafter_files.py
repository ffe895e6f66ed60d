"""Files of drafters as other programs write them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoint import (
    DRAFTER,
    EAGLE3,
    IDS,
    TARGET,
    assert_same_bits,
    change_config,
    change_tensors,
    random_params,
    report,
)

from dart_jax.errors import InputWarning
from dart_jax.models.drafter_config import BlockConfig
from dart_jax.weights.checkpoint import load_drafter, save_drafter, save_target
from dart_jax.weights.drafter_files import check_draft_model, check_fit

BLOCK = BlockConfig.for_target(
    TARGET, num_hidden_layers=1, block_size=3, mask_token_id=29, feature_layers=(1, 6)
)
TABLE = jnp.asarray(np.random.default_rng(3).normal(size=(30, 8)), jnp.float32)


@pytest.fixture
def eagle3(tmp_path):
    """A saved EAGLE-3 drafter."""
    save_drafter(tmp_path, EAGLE3, random_params(EAGLE3), IDS)
    return tmp_path


def rename(directory, new):
    change_tensors(directory, lambda tensors: {new(name): t for name, t in tensors.items()})


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("layer", ["layers.0.", "midlayer."])
def test_names_of_other_programs(eagle3, prefix, layer):
    """With buffers, which are no weights."""
    names = ("rotary_emb.inv_freq", "midlayer.self_attn.rotary_emb.inv_freq")
    change_tensors(eagle3, lambda t: t | {name: np.ones(2) for name in names})
    outside = ("d2t", "t2d", "lm_head.weight")
    rename(eagle3, lambda n: n if n in outside else prefix + n.replace("midlayer.", layer))
    config, params, ids = load_drafter(eagle3)
    assert config == EAGLE3
    assert_same_bits(params, random_params(EAGLE3))
    np.testing.assert_array_equal(ids, IDS)
    rename(eagle3, lambda n: n.replace(prefix + layer, f"{prefix}layers.0."))
    again = {f"{prefix}layers.1.input_layernorm.weight": np.ones(8)}
    change_tensors(eagle3, lambda t: t | again)
    assert "has more than one layer (layers.1.input_layer" in report(load_drafter, eagle3)


def test_a_drafter_of_speculators_as_a_whole(eagle3):
    """With copies of the target's head and norm, with which that library trains."""
    copies = {"verifier_lm_head.weight": np.zeros((20, 8)), "verifier_norm.weight": np.ones(8)}
    own = {"embed_tokens.weight": np.asarray(TABLE), **copies}
    change_tensors(eagle3, lambda tensors: tensors | own)
    rename(eagle3, lambda name: name.replace("midlayer.", "layers.0."))
    inner = json.loads((eagle3 / "config.json").read_text())
    outer = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": inner.pop("draft_vocab_size"),
        "norm_before_residual": True,
        "transformer_layer_config": {n: v for n, v in inner.items() if n != "architectures"},
    }
    (eagle3 / "config.json").write_text(json.dumps(outer))
    expected = dataclasses.replace(EAGLE3, norm_before_residual=True)
    config, params, _ = load_drafter(eagle3, embedding=TABLE)
    assert config == expected
    assert_same_bits(params, random_params(EAGLE3))
    config, params, _ = load_drafter(eagle3, embedding=2 * TABLE)
    assert config == dataclasses.replace(expected, own_embedding=True)
    np.testing.assert_array_equal(params["embed_tokens"], TABLE)


def test_a_layer_under_two_names(eagle3):
    change_tensors(eagle3, lambda tensors: tensors | {"model.norm.weight": tensors["norm.weight"]})
    assert "same tensors under two names, model.norm.weight, norm.weight" in report(
        load_drafter, eagle3
    )


@pytest.mark.parametrize("drafter", [DRAFTER, EAGLE3], ids=["dart", "eagle3"])
def test_a_drafter_of_another_width_than_its_target(tmp_path, drafter):
    wide = dataclasses.replace(drafter, hidden_size=16)
    params = random_params(dataclasses.replace(wide, own_embedding=True))
    table = params.pop("embed_tokens")
    save_drafter(tmp_path, wide, params, IDS, embedding=table)
    check_fit(TARGET, wide)
    config, loaded, _ = load_drafter(tmp_path, embedding=TABLE)
    assert config == dataclasses.replace(wide, own_embedding=True)
    assert_same_bits(loaded, params | {"embed_tokens": table})
    change_tensors(tmp_path, lambda t: {n: x for n, x in t.items() if "embed" not in n})
    assert "cannot read the target's; pass a file with the embedding" in report(
        load_drafter, tmp_path
    )


@pytest.mark.parametrize("drafter", [DRAFTER, EAGLE3])
@pytest.mark.parametrize("fields", [{"num_hidden_layers": 40}, {"draft_vocab_size": 17}])
def test_the_file_tells_sizes(tmp_path, drafter, fields):
    save_drafter(tmp_path, drafter, random_params(drafter), IDS)
    change_config(tmp_path, **fields)
    config, params, ids = load_drafter(tmp_path)
    assert config == drafter
    assert_same_bits(params, random_params(drafter))
    np.testing.assert_array_equal(ids, IDS)


def test_weights_of_norms_that_the_config_does_not_name(eagle3):
    for name, shape in (("fc_norm.0.weight", 8), ("input_norm.weight", 24)):
        change_tensors(eagle3, lambda t, n=name, s=shape: t | {n: np.ones(s, np.float32)})
        assert f"unexpected {name}" in report(load_drafter, eagle3)
        change_tensors(eagle3, lambda t, n=name: {k: v for k, v in t.items() if k != n})
    change_config(eagle3, fc_norm=True)
    message = report(load_drafter, eagle3)
    assert all(f"missing fc_norm.{i}.weight" in message for i in range(3))


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_that_is_missing_is_the_targets(tmp_path, tied):
    config, drafter = dataclasses.replace(TARGET, tie_word_embeddings=tied), tmp_path / "drafter"
    target = random_params(config, seed=1)
    save_target(tmp_path / "target", config, target)
    whole = dataclasses.replace(EAGLE3, draft_vocab_size=30)
    params = random_params(whole)
    save_drafter(drafter, whole, params, np.arange(30, dtype=np.int32))
    change_tensors(drafter, lambda t: {n: x for n, x in t.items() if n != "lm_head.weight"})
    head = target["embed_tokens"].T if tied else target["lm_head"]["kernel"]
    loaded = load_drafter(drafter, target=tmp_path / "target")[1]
    assert_same_bits(loaded, params | {"lm_head": {"kernel": head}})
    assert "missing lm_head.weight" in report(load_drafter, drafter)
    change_config(drafter, draft_vocab_size=20)
    message = report(lambda d: load_drafter(d, target=tmp_path / "target"), drafter)
    assert "missing lm_head.weight" in message


@pytest.mark.parametrize("flags", [bool, np.uint8, None])
def test_forms_of_the_draft_vocabulary(eagle3, flags):
    """Differences, or the ids themselves."""

    def stored(tensors, d2t):
        marks = {} if flags is None else {"t2d": np.isin(np.arange(30), IDS).astype(flags)}
        return {n: x for n, x in tensors.items() if n != "t2d"} | marks | {"d2t": d2t}

    for values in (IDS - np.arange(20), IDS, IDS.astype(np.int16)):
        change_tensors(eagle3, lambda t, d2t=values: stored(t, d2t))
        np.testing.assert_array_equal(load_drafter(eagle3)[2], IDS)
    change_tensors(eagle3, lambda t: t | {"t2d": np.zeros(30, bool)})
    with pytest.warns(InputWarning, match="t2d of .* marks other tokens"):
        np.testing.assert_array_equal(load_drafter(eagle3)[2], IDS)


@pytest.mark.parametrize("drafter", [DRAFTER, EAGLE3], ids=["dart", "eagle3"])
@pytest.mark.parametrize("rows", [28, 33])
def test_a_vocabulary_with_another_padding(tmp_path, drafter, rows):
    """Ids that the target does not have are left out of the head."""
    config = dataclasses.replace(drafter, vocab_size=rows, draft_vocab_size=rows)
    params = random_params(config)
    ids = np.arange(rows, dtype=np.int32)
    table = np.random.default_rng(1).normal(size=(rows, 8)).astype(np.float32)
    save_drafter(tmp_path, config, params, ids, embedding=jnp.asarray(table))
    check_fit(TARGET, config)
    rest = min(rows, 30)
    target = np.asarray(TABLE).copy()
    target[:rest] = table[:rest]
    loaded, ours, draft_ids = load_drafter(tmp_path, embedding=jnp.asarray(target))
    assert loaded == dataclasses.replace(config, draft_vocab_size=rest)  # it shares the embedding
    np.testing.assert_array_equal(draft_ids, ids[:rest])
    cut = params | {"lm_head": jax.tree.map(lambda x: x[:, :rest], params["lm_head"])}
    assert_same_bits(ours, cut)


def test_pair_scores_of_tokens_that_the_target_lacks(tmp_path):
    config = dataclasses.replace(DRAFTER, pair_rank=3, vocab_size=33, draft_vocab_size=33)
    save_drafter(tmp_path, config, random_params(config), np.arange(33, dtype=np.int32))
    message = report(lambda d: load_drafter(d, embedding=TABLE), tmp_path)
    assert "ids beyond the target's 30 tokens, and pair scores of them" in message


def test_a_drafter_of_another_target(tmp_path):
    wide = dataclasses.replace(TARGET, hidden_size=64)
    for target, drafter, message in (
        (TARGET, dataclasses.replace(EAGLE3, feature_layers=(0, 6)), None),
        (TARGET, dataclasses.replace(EAGLE3, feature_layers=(0, 7)), "only 7, from 0 on"),
        (TARGET, BLOCK, None),
        (dataclasses.replace(TARGET, num_hidden_layers=6), BLOCK, "layers (1, 6), but the target"),
        (wide, BLOCK, "hidden_size is 64 in the target and 8 in the drafter"),
        (dataclasses.replace(TARGET, vocab_size=2000), BLOCK, "30 tokens and the target 2000"),
        (dataclasses.replace(TARGET, vocab_size=29), BLOCK, "mask_token_id is 29, but the target"),
    ):
        if message is None:
            check_fit(target, drafter)
        else:
            assert message in report(check_fit, target, drafter)
    check_draft_model(tmp_path, ["model.embed_tokens.weight"])
    message = report(check_draft_model, tmp_path, ["embed_tokens.weight", "fc.weight"])
    assert "EAGLE-1 or EAGLE-2 (fc.weight)" in message
