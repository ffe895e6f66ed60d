"""Files of block drafters: what they share with the target, and damage that is reported."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from test_checkpoint import assert_same_bits, change_config, change_tensors, random_params, report
from tiny_configs import AUTHORS

from dart_jax.weights.checkpoint import load_drafter, save_drafter, save_target

GOLDENS = Path(__file__).parent / "block_drafters"


@pytest.fixture
def copied(tmp_path):
    """Copies a golden drafter; returns its directory, and saves the target of it beside."""

    def copy(name, tied=False):
        drafter = tmp_path / "drafter"
        shutil.copytree(GOLDENS / name, drafter)
        outputs = load_file(drafter / "outputs.safetensors")
        (drafter / "outputs.safetensors").unlink()
        params = random_params(AUTHORS) | {"embed_tokens": jnp.asarray(outputs["embed"])}
        params["lm_head"] = {"kernel": jnp.asarray(outputs["head"].T)}
        config = AUTHORS
        if tied:
            config = dataclasses.replace(AUTHORS, tie_word_embeddings=True)
            del params["lm_head"]
        save_target(tmp_path / "target", config, params)
        return drafter, tmp_path / "target", params["embed_tokens"]

    return copy


def without(directory, *names):
    change_tensors(directory, lambda t: {name: x for name, x in t.items() if name not in names})


@pytest.mark.parametrize("tied", [False, True])
def test_copies_of_the_target_are_dropped(copied, tied):
    """One embedding and one head in memory, if the drafter's are the target's."""
    drafter, target, embedding = copied("dspark", tied)
    if tied:
        change_tensors(drafter, lambda t: t | {"lm_head.weight": np.asarray(embedding)})
    config, params, ids = load_drafter(drafter, embedding=embedding, target=target)
    assert not config.own_embedding
    assert not config.own_head
    assert {"embed_tokens", "lm_head"}.isdisjoint(params)
    np.testing.assert_array_equal(ids, np.arange(97))
    # As a file that never had them.
    without(drafter, "embed_tokens.weight", "lm_head.weight")
    again = load_drafter(drafter, embedding=embedding, target=target)
    assert again[0] == config
    assert_same_bits(again[1], params)


@pytest.mark.parametrize(
    ("name", "field"), [("embed_tokens.weight", "own_embedding"), ("lm_head.weight", "own_head")]
)
def test_what_differs_from_the_target_is_kept(copied, name, field):
    drafter, target, embedding = copied("dspark")
    trained = load_file(drafter / "model.safetensors")[name] + np.float32(0.25)
    change_tensors(drafter, lambda t: t | {name: trained})
    config, params, _ = load_drafter(drafter, embedding=embedding, target=target)
    assert (config.own_embedding, config.own_head) == (
        field == "own_embedding",
        field == "own_head",
    )
    kept = params["lm_head"]["kernel"].T if field == "own_head" else params["embed_tokens"]
    np.testing.assert_array_equal(kept, trained)


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_of_a_reduced_vocabulary_is_rows_of_the_targets(copied, tied):
    drafter, target, embedding = copied("speculators_dspark", tied)
    ids = load_drafter(drafter, embedding=embedding, target=target)[2]
    head = load_file(target / "model.safetensors")[
        "model.embed_tokens.weight" if tied else "lm_head.weight"
    ]
    change_tensors(drafter, lambda t: t | {"lm_head.weight": head[ids]})
    stored = load_drafter(drafter, embedding=embedding, target=target)
    without(drafter, "lm_head.weight")
    taken = load_drafter(drafter, embedding=embedding, target=target)
    assert taken[0] == stored[0]
    assert taken[0].own_head
    assert_same_bits(taken[1], stored[1])
    np.testing.assert_array_equal(taken[2], ids)
    message = report(load_drafter, drafter, embedding=embedding)
    assert "missing lm_head.weight" in message
    narrow = dataclasses.replace(AUTHORS, hidden_size=16)
    save_target(target, narrow, random_params(narrow))
    message = report(load_drafter, drafter, embedding=embedding, target=target)
    assert "taken by the head of a target of the same shape" in message
    without(drafter, "d2t", "t2d")
    message = report(load_drafter, drafter, embedding=embedding, target=target)
    assert "missing d2t" in message


@pytest.mark.parametrize(
    ("golden", "name"),
    [
        ("dflash", "layers.1.self_attn.k_norm.weight"),
        ("dspark_gated", "markov_head.gate_proj.bias"),
        ("specforge_dspark", "confidence_head.proj.weight"),
        ("dflash2", "candidate_selector.successor_codebook"),
    ],
)
def test_tensors_that_are_missing_misshapen_or_not_known(copied, golden, name):
    drafter, target, embedding = copied(golden)

    def damage(tensors):
        tensor = tensors.pop(name)
        return tensors | {
            "hidden_dim_adapter.proj.weight": tensor,
            "fc.weight": tensors["fc.weight"][:-1],
        }

    change_tensors(drafter, damage)
    message = report(load_drafter, drafter, embedding=embedding, target=target)
    assert f"missing {name}" in message
    assert "unexpected hidden_dim_adapter.proj.weight" in message
    assert "fc.weight has shape" in message


def test_names_of_older_files_of_specforge(copied):
    drafter, target, embedding = copied("specforge_dspark")
    expected = load_drafter(drafter, embedding=embedding, target=target)[1]
    heads = ("markov_head.", "confidence_head.")
    change_tensors(
        drafter,
        lambda t: {f"logit_head.{n}" if n.startswith(heads) else n: x for n, x in t.items()},
    )
    assert_same_bits(load_drafter(drafter, embedding=embedding, target=target)[1], expected)


def test_copies_for_loaders_that_take_them_from_the_file(copied, tmp_path):
    """As speculators' own does."""
    drafter, target, embedding = copied("speculators_dflash")
    config, params, ids = load_drafter(drafter, embedding=embedding, target=target)
    head = jnp.asarray(load_file(target / "model.safetensors")["lm_head.weight"]).T
    save_drafter(tmp_path / "again", config, params, ids, embedding=embedding, head=head)
    written = load_file(tmp_path / "again/model.safetensors")
    np.testing.assert_array_equal(written["embed_tokens.weight"], embedding)
    np.testing.assert_array_equal(written["lm_head.weight"], head.T)


def test_a_layout_is_written_with_what_it_has(copied, tmp_path):
    drafter, target, embedding = copied("dspark")
    config, params, ids = load_drafter(drafter, embedding=embedding, target=target)
    loaded = (tmp_path / "again", config, params, ids)
    assert "the target's head; pass it" in report(save_drafter, *loaded, embedding=embedding)
    head = jnp.asarray(load_file(drafter / "model.safetensors")["lm_head.weight"]).T
    assert "the target's embedding; pass it" in report(save_drafter, *loaded, head=head)
    save_drafter(*loaded, embedding=embedding, head=head)
    before, after = (
        load_file(path / "model.safetensors") for path in (drafter, tmp_path / "again")
    )
    assert_same_bits(after, before)
    # SGLang and vLLM read these in an object.
    written = json.loads((tmp_path / "again/config.json").read_text())
    assert written["dflash_config"] == {"target_layer_ids": [1, 4, 6], "mask_token_id": 96}
    change_config(drafter, dflash_config=written["dflash_config"])
    assert load_drafter(drafter, embedding=embedding, target=target)[0] == config
