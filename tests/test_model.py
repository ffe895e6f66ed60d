"""Loading a model from files, and the decoders built from it."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import pytest
import tiny_model

from dart_jax.engine.config import EngineConfig
from dart_jax.errors import InputWarning, UserError
from dart_jax.model import DartModel
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.text.tokenizer import Tokenizer

MAX_LENGTH = 60


@pytest.fixture(scope="module")
def model(tiny):
    return DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)


def lists(generation):
    return [row.tolist() for row in generation.tokens]


def test_load(model):
    shapes = tiny_model.SHAPES
    assert model.drafter == shapes.drafter
    assert model.eos == (0,)
    assert model.ngram.order == 3
    assert model.tokenizer.vocab_size == shapes.vocab_size
    assert model.params["draft_ids"].tolist() == list(range(shapes.vocab_size))
    untied = dataclasses.replace(shapes.target, tie_word_embeddings=False)
    tied = jax.default_backend() != "cpu" or model.execution.weights.tiles
    assert model.target == (shapes.target if tied else untied)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_weights_have_the_requested_dtype(tiny, dtype):
    params = DartModel.from_pretrained(tiny.target, tiny.drafter, dtype=dtype).params
    weights = jax.tree.leaves((params["target"], params["drafter"]))
    assert {leaf.dtype for leaf in weights} == {jnp.dtype(dtype)}


def test_parts_can_be_left_out(tiny):
    model = DartModel.from_pretrained(tiny.target, None, None)
    assert model.drafter is None
    assert model.ngram is None
    assert set(model.params) == {"target"}
    assert len(model.generate(tiny.prompts[0], max_new_tokens=3).tokens) == 3
    with pytest.raises(UserError, match="no drafter was loaded"):
        model.engine(EngineConfig(max_length=MAX_LENGTH, tree_nodes=4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 2000}, "the drafter has 2000 tokens and the target 300"),
        ({"target_hidden_size": 32}, "hidden_size is 64 in the target and 32 in the drafter"),
    ],
)
def test_a_drafter_of_another_target(tiny, tmp_path, change, message):
    drafter = dataclasses.replace(tiny_model.SHAPES.drafter, **change)
    tiny_model.write_drafter(tmp_path, drafter)
    with pytest.raises(UserError, match=message):
        DartModel.from_pretrained(tiny.target, tmp_path, None)


def test_an_ngram_model_of_another_tokenizer(tiny, tmp_path):
    """Detected by its fingerprint; without one it passes unless its vocabulary is too large."""
    path = tmp_path / "ngram"
    unknown, other = bytes(32), bytes(range(32))
    size = DartModel.from_pretrained(tiny.target, tiny.drafter, None).target.vocab_size
    for vocab_size, fingerprint, message in [
        (size, unknown, None),
        (size + 1, unknown, f"made for a vocabulary of {size + 1} tokens, here it is {size}"),
        (300, other, "counted with another tokenizer"),
        (300, tokenizer_fingerprint(Tokenizer.load(tiny.target)), None),
    ]:
        NgramModel.count([[1, 2]], vocab_size=vocab_size, fingerprint=fingerprint).save(path)
        if message is None:
            DartModel.from_pretrained(tiny.target, tiny.drafter, path)
            continue
        with pytest.raises(UserError, match=message):
            DartModel.from_pretrained(tiny.target, tiny.drafter, path)


def with_tokens(target, directory, *added):
    """A copy of a target whose tokenizer has more special tokens."""
    shutil.copytree(target, directory)
    tokenizer = Tokenizer.load(directory).backend
    tokenizer.add_special_tokens(list(added))
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def test_a_tokenizer_with_more_tokens_than_embeddings(tiny, tmp_path):
    """As Gemma 3 1B is published: only a use of such a token is refused, by its name."""
    model = DartModel.from_pretrained(with_tokens(tiny.target, tmp_path / "target", "<image>"))
    size = model.target.vocab_size
    assert model.tokenizer.vocab_size == size + 1
    expected = DartModel.from_pretrained(tiny.target).generate("x", max_new_tokens=8)
    assert model.generate("x", max_new_tokens=8).tokens.tolist() == expected.tokens.tolist()
    named = rf"the token id {size} \('<image>'\)"
    for prompt, options in [
        ("an <image>", {}),
        ([1, size], {}),
        ("x", {"stop": size}),
        ("x", {"eos_token_id": [0, size]}),
    ]:
        with pytest.raises(UserError, match=named) as error:
            model.generate(prompt, **options)
        assert "\n" not in str(error.value)


def test_tokens_without_embeddings_are_not_drafted_in_vain(tiny, tmp_path):
    """An n-gram model may have counted them: the text stays that of plain decoding."""
    target = with_tokens(tiny.target, tmp_path / "target", "<image>")
    size = DartModel.from_pretrained(tiny.target).target.vocab_size
    fingerprint = tokenizer_fingerprint(Tokenizer.load(target))
    documents = [[n, size, 7, 8] for n in range(size)]
    path = tmp_path / "ngram"
    NgramModel.count(documents, vocab_size=size + 1, fingerprint=fingerprint).save(path)
    model = DartModel.from_pretrained(target, None, path)
    options = {"temperature": 1.0, "repetition_penalty": 1.2, "seed": 3, "max_new_tokens": 12}
    plain, drafted = (model.generate("x", tree_nodes=nodes, **options) for nodes in (0, 8))
    assert drafted.tokens.tolist() == plain.tokens.tolist()


def test_an_ngram_model_and_a_tokenizer_that_adds_tokens(tiny, tmp_path):
    """All ids in it mean the same; one of a tokenizer that renamed a token is refused."""
    path, fingerprint = tmp_path / "ngram.dng", tokenizer_fingerprint(Tokenizer.load(tiny.target))
    NgramModel.count([[1, 2, 3]] * 3, vocab_size=300, fingerprint=fingerprint).save(path)
    more = with_tokens(tiny.target, tmp_path / "more", "<a>", "<b>")
    assert DartModel.from_pretrained(more, ngram=path).ngram is not None
    renamed = shutil.copytree(tiny.target, tmp_path / "renamed")
    content = json.loads((renamed / "tokenizer.json").read_text())
    [name] = [name for name, id in content["model"]["vocab"].items() if id == 9]
    assert not any(name in "".join(merge) for merge in content["model"]["merges"])
    content["model"]["vocab"] = {
        "<renamed>" if other == name else other: id
        for other, id in content["model"]["vocab"].items()
    }
    (renamed / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="counted with another tokenizer; count one with this"):
        DartModel.from_pretrained(renamed, ngram=path)


def test_a_generation_config_that_changes_greedy_texts(tiny, tmp_path):
    """It is told, as transformers would apply it; what only sampling uses is not."""
    target = shutil.copytree(tiny.target, tmp_path / "target")
    path = target / "generation_config.json"
    own = {"eos_token_id": 0, "do_sample": True, "temperature": 0.7, "top_p": 0.8, "num_beams": 1}
    path.write_text(json.dumps(own | {"repetition_penalty": 1.0, "typical_p": 0.9}))
    DartModel.from_pretrained(target)
    path.write_text(json.dumps(own | {"repetition_penalty": 1.05, "suppress_tokens": [3]}))
    message = (
        r"repetition_penalty=1\.05 is used only with .*; suppress_tokens=\[3\] is not supported"
    )
    with pytest.warns(InputWarning, match=message):
        DartModel.from_pretrained(target)
