"""Loading a model from files, and the decoders built from it."""

import dataclasses
import json
import shutil

import jax
import pytest
import tiny_model

from dart_jax.engine.config import EngineConfig
from dart_jax.errors import InputWarning, UserError
from dart_jax.model import DartModel
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(tiny):
    return DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)


def test_load(model):
    shapes = tiny_model.SHAPES
    assert (model.drafter, model.eos, model.ngram.order) == (shapes.drafter, (0,), 3)
    assert model.tokenizer.vocab_size == shapes.vocab_size
    assert model.params["draft_ids"].tolist() == list(range(shapes.vocab_size))
    untied = dataclasses.replace(shapes.target, tie_word_embeddings=False)
    tied = jax.default_backend() != "cpu" or model.execution.weights.tiles
    assert model.target == (shapes.target if tied else untied)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_have_the_requested_dtype(tiny, dtype):
    """With matrices in float16, vectors are float32; a drafter that is loaded later, too."""
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, dtype=dtype)
    weights = jax.tree.leaves((model.params["target"], model.params["drafter"]))
    beside = {"float32"} if dtype == "float16" else set()
    assert {leaf.dtype.name for leaf in weights} == {dtype} | beside
    other = model.with_drafter(None).with_drafter(tiny.drafter)
    dtypes = jax.tree.map(lambda x: x.dtype, (model.params, other.params))
    assert dtypes[0] == dtypes[1]
    assert f"{dtype}; keys and values {dtype}" in repr(model)
    plain = model.with_drafter("none").generate(tiny.prompts[0], max_new_tokens=12)
    drafted = model.generate(tiny.prompts[0], max_new_tokens=12)
    assert [*drafted.tokens] == [*plain.tokens]


def test_former_names_of_arguments(tiny):
    now = DartModel.from_pretrained(tiny.target, weights="int8", kv="float32", dtype="float32")
    before = DartModel.from_pretrained(
        tiny.target, weights_dtype="int8", kv_dtype="float32", dtype="float32"
    )
    default = DartModel.from_pretrained(tiny.target, dtype="float32")
    assert before.execution == now.execution != default.execution
    with pytest.raises(UserError, match="kv_dtype is the former name of kv; pass one of them"):
        DartModel.from_pretrained(tiny.target, kv="float32", kv_dtype="float32")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int4"}, "weights must be one of stored, float, int8, got 'int4'"),
        ({"kv": "int8"}, "kv must be one of auto, float32, float16, bfloat16, got 'int8'"),
        ({"attention": "flash"}, "attention must be one of auto, dense, .*, got 'flash'"),
        ({"ngram_device_memory": "x"}, "memory must be written like 4GB or 800MB, got 'x'"),
        ({"text_drafts": "no"}, "text_drafts must be bool, got 'no'"),
        ({"drafter": 3}, "drafter must be str or PathLike or None, got 3"),
        ({"torch_dtype": "float32"}, "has no option torch_dtype; did you mean dtype?"),
        ({"device": 0}, "has no option device; the options are target, drafter"),
    ],
)
def test_arguments_are_checked(tiny, options, message):
    with pytest.raises(UserError, match=message):
        DartModel.from_pretrained(tiny.target, **options)


def test_a_target_must_be_a_path():
    with pytest.raises(UserError, match="target must be str or PathLike, got None"):
        DartModel.from_pretrained(None)
    with pytest.raises(UserError, match="no directory smolm2; did you mean smollm2"):
        DartModel.from_pretrained("smolm2")


def test_parts_can_be_left_out(tiny):
    model = DartModel.from_pretrained(tiny.target)
    assert (model.drafter, model.ngram, set(model.params)) == (None, None, {"target"})
    assert len(model.generate(tiny.prompts[0], max_new_tokens=3).tokens) == 3
    assert "the text itself" in repr(model)
    for plain in (DartModel.from_pretrained(tiny.target, "none"), model.with_drafter("none")):
        with pytest.raises(UserError, match="nothing drafts"):
            plain.engine(EngineConfig(max_length=60, tree_nodes=4))
    with pytest.raises(UserError, match="an n-gram model drafts"):
        DartModel.from_pretrained(tiny.target, "none", tiny.ngram)


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


def count(path, documents, tokenizer_of, vocab_size=300):
    """Writes an n-gram model as counted with the tokenizer of a target."""
    fingerprint = tokenizer_fingerprint(Tokenizer.load(tokenizer_of))
    NgramModel.count(documents, vocab_size=vocab_size, fingerprint=fingerprint).save(path)


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
    target, path = with_tokens(tiny.target, tmp_path / "target", "<image>"), tmp_path / "ngram"
    size = tiny_model.SHAPES.vocab_size
    count(path, [[n, size, 7, 8] for n in range(size)], target, size + 1)
    model = DartModel.from_pretrained(target, None, path)
    options = {"temperature": 1.0, "repetition_penalty": 1.2, "seed": 3, "max_new_tokens": 12}
    plain, drafted = (model.generate("x", tree_nodes=nodes, **options) for nodes in (0, 8))
    assert drafted.tokens.tolist() == plain.tokens.tolist()


def test_ngram_models_and_tokenizers(tiny, tmp_path):
    """One may have been counted with a tokenizer that has fewer tokens, but all its ids must mean
    the same; where it does not tell, its vocabulary must not be larger."""
    path, size = tmp_path / "ngram", tiny_model.SHAPES.vocab_size
    count(path, [[1, 2, 3]] * 3, tiny.target)
    for target in (tiny.target, with_tokens(tiny.target, tmp_path / "more", "<a>", "<b>")):
        assert DartModel.from_pretrained(target, ngram=path).ngram is not None
    renamed = shutil.copytree(tiny.target, tmp_path / "renamed")
    content = json.loads((renamed / "tokenizer.json").read_text())
    [name] = [name for name, id in content["model"]["vocab"].items() if id == 9]
    content["model"]["vocab"]["<renamed>"] = content["model"]["vocab"].pop(name)
    (renamed / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="counted with another tokenizer; count one with this"):
        DartModel.from_pretrained(renamed, ngram=path)
    NgramModel.count([[1, 2]], vocab_size=size, fingerprint=bytes(32)).save(path)
    DartModel.from_pretrained(tiny.target, ngram=path)
    NgramModel.count([[1, 2]], vocab_size=size + 1, fingerprint=bytes(32)).save(path)
    with pytest.raises(UserError, match=f"made for a vocabulary of {size + 1} tokens, here it is"):
        DartModel.from_pretrained(tiny.target, ngram=path)


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
