"""EAGLE-3 drafters of other programs, from their files to the target's tokens."""

import dataclasses
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_configs
import tiny_model
import tokenizers
from safetensors.numpy import load_file, save_file

from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.models.pure import bind
from dart_jax.weights.checkpoint import save_drafter
from train.drafter import check_trainable
from train.objective.drafter_shape import DrafterShape

VOCABULARY = tiny_model.SHAPES.vocab_size


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


def write(directory, **changes):
    """A random drafter with these options."""
    config = DrafterShape(method="eagle3").config(tiny_model.SHAPES.target)
    config = dataclasses.replace(config, **changes)
    ids = np.arange(VOCABULARY, dtype=np.int32)[: config.draft_vocab_size]
    save_drafter(directory, config, tiny_configs.random_params(config, 1), ids)
    return config


def into_speculators(directory):
    """Rewrites a drafter into the layout of speculators."""
    path = directory / "config.json"
    inner = json.loads(path.read_text())
    names = [name for name in inner if name.startswith(("norm_", "fc_norm", "eagle_aux"))]
    names += [name for name in ("draft_vocab_size", "target_hidden_size") if name in inner]
    outer = {name: inner.pop(name) for name in names}
    del inner["architectures"]
    inner.pop("eagle_config", None)
    outer |= {"architectures": ["Eagle3Speculator"], "transformer_layer_config": inner}
    path.write_text(json.dumps(outer | {"speculators_model_type": "eagle3"}))
    weights = directory / "model.safetensors"
    tensors = load_file(weights).items()
    save_file({name.replace("midlayer.", "layers.0."): x for name, x in tensors}, weights)


NEWER = {"norm_before_residual": True, "norm_output": True, "fc_norm": True}


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (7, {"hidden_size": 32, "own_embedding": True, "feature_layers": (0, 2, 3, 6), **NEWER}),
        (3, {"qk_norm": True, "norm_before_fc": True, "feature_layers": (1, 2)}),
    ],
    ids=["narrow", "shallow"],
)
def test_a_drafter_of_speculators_is_plain_decoding(tiny, tmp_path, layers, options):
    target = dataclasses.replace(tiny_model.SHAPES.target, num_hidden_layers=layers)
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny.target / "tokenizer.json"))
    tiny_model.write_target(tmp_path / "target", target, tokenizer)
    drafter = write(tmp_path / "drafter", **options)
    into_speculators(tmp_path / "drafter")
    model = DartModel.from_pretrained(tmp_path / "target", tmp_path / "drafter")
    assert model.drafter == drafter
    sampling = Sampling(0.9, top_p=0.9)  # the noise alone makes some drafts right
    ours, plain = (
        model.decoder(nodes=nodes, max_length=96, sampling=sampling)(tiny.prompts, 24, seed=3)
        for nodes in (12, 0)
    )
    assert [t.tolist() for t in ours.tokens] == [t.tolist() for t in plain.tokens]
    assert any(row.any() for row in ours.drafted)
    assert model.with_drafter(None).drafter is None


def test_the_target_captures_the_layers_that_are_asked_for():
    target = bind(tiny_configs.TARGET, tiny_configs.random_params(tiny_configs.TARGET, 0))
    tokens, mask = jnp.arange(6, dtype=jnp.int32)[None], jnp.tril(jnp.ones((1, 6, 6), bool))

    def features(layers):
        return np.asarray(target(tokens, tokens, mask, feature_layers=layers).features)

    np.testing.assert_array_equal(features(None), features((2, 3, 4)))
    each = [features((layer,)) for layer in (0, 3, 6)]
    np.testing.assert_array_equal(each[0], target.embed(tokens))
    np.testing.assert_array_equal(features((0, 3, 6)), np.concatenate(each, axis=-1))


def test_a_draft_model_with_another_tokenizer(tiny, tmp_path):
    """Of the same size; added tokens may differ."""
    drafter = shutil.copytree(tiny.target, tmp_path / "drafter")
    path = drafter / "tokenizer.json"
    json_ = json.loads(path.read_text())
    json_["added_tokens"][0]["content"] = "<other>"
    path.write_text(json.dumps(json_))
    model = DartModel.from_pretrained(tiny.target)
    vocabulary = json_["model"]["vocab"]
    a, b = (token for token, id in vocabulary.items() if id in (150, 151))
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    path.write_text(json.dumps(json_))
    with pytest.raises(UserError, match=r"token 15[01] is .* in the draft model's"):
        model.with_drafter(drafter)
    path.unlink()
    assert model.with_drafter(drafter).drafter is not None


@pytest.mark.parametrize("name", ["norm_output", "own_embedding", "feature_layers"])
def test_a_drafter_that_is_not_trained_on(name):
    target = tiny_configs.TARGET
    check_trainable("there", target, tiny_configs.EAGLE3)
    value = (0, 1, 2) if name == "feature_layers" else True
    drafter = dataclasses.replace(tiny_configs.EAGLE3, **{name: value})
    with pytest.raises(UserError, match=f"--init there is a drafter with {name}, .* leave --init"):
        check_trainable("there", target, drafter)
