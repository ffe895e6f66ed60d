"""One tokenizer class: the same ids and texts as transformers, chats, and bad input."""

import json

import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from refusals import report
from tokenizers_made import KINDS, TEXTS

from dart_jax.text.fingerprint import tokenizer_fingerprint
from dart_jax.text.tokenizer import Tokenizer

TEMPLATE = (
    "{%- for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>\n{% endfor -%}"
    "{% if messages[0].role == 'robot' %}{{ raise_exception('no robots\nhere') }}{% endif %}"
    "{% if tools %}{{ tools | length }} tools\n{% endif %}"
    "{% if add_generation_prompt %}<s>assistant:"
    "{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
CHAT = [{"role": "user", "content": "how?"}, {"role": "assistant", "content": "so."}]


@pytest.fixture(scope="module", params=KINDS)
def directory(request, tmp_path_factory):
    """As the hub has them: padded and truncated, with a chat template and cleaning of spaces."""
    child = KINDS[request.param]()
    path = tmp_path_factory.mktemp("tokenizer")
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=child, eos_token="</s>", clean_up_tokenization_spaces=True
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(path)
    padded = tokenizers.Tokenizer.from_str(child.to_str())
    padded.enable_padding(length=7)
    padded.enable_truncation(5)
    padded.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    return Tokenizer.load(directory)


@pytest.fixture(scope="module")
def theirs(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


@given(text=st.one_of(st.sampled_from(TEXTS), st.text(), st.text("abeél \n日'.,<s>/")))
def test_encoding_and_decoding_are_those_of_transformers(tokenizer, theirs, text):
    ids = tokenizer.encode(text)
    assert ids == theirs(text)["input_ids"]
    for skip in (False, True):
        assert tokenizer.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


@given(ids=st.lists(st.integers(0, 340)))
def test_any_ids_are_decoded_as_by_transformers(tokenizer, theirs, ids):
    assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode(np.array(ids, np.int32)) == tokenizer.decode(ids)


def test_chats_are_those_of_transformers(tokenizer, theirs):
    tools = [{"type": "function", "function": {"name": "look"}}]
    for options in ({}, {"enable_thinking": False}, {"tools": tools}):
        expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, **options)[
            "input_ids"
        ]
        assert tokenizer.encode_chat(CHAT, **options) == expected
    begin = tokenizer.backend.token_to_id("<s>")
    assert tokenizer.encode_chat(CHAT).count(begin) == 3  # none added around the text
    closed = tokenizer.encode_chat(CHAT, add_generation_prompt=False)
    assert closed == theirs.apply_chat_template(CHAT)["input_ids"]


def test_bad_texts_and_chats(tokenizer):
    for messages, message in (
        ("hello", "not a str"),
        ([], "not empty"),
        (CHAT[0], "not a dict"),
        (["hello"], "message 0 is a str"),
        ([CHAT[0], {"content": "a"}], "message 1 has no role"),
        ([{"role": "user"}], "message 0 has no text as its content"),
        ([{"role": "user", "content": 3}], "message 0 has no text as its content"),
        ([{"role": "robot", "content": "a"}], "refuses the messages: no robots"),
        ([{"role": "user", "content": "\udfff"}], "half of a surrogate pair"),
    ):
        assert message in report(tokenizer.encode_chat, messages)
    assert "surrogate pair at character 1" in report(tokenizer.encode, "a\ud800b")


def test_vocabulary(tokenizer):
    assert tokenizer.vocab_size == max(tokenizer.get_vocab().values()) + 1
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(tokenizer.backend)
    assert tokenizer.special_ids >= {tokenizer.backend.token_to_id("<s>")}
    assert tokenizer.backend.token_to_id("<think>") not in tokenizer.special_ids


def test_without_tokenizer_json(tmp_path):
    vocab = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert Tokenizer.load(tmp_path).encode("aab") == [0, 2]


def test_missing_and_damaged_files(tmp_path, tokenizer):
    assert "none; pass one with a tokenizer.json" in report(Tokenizer.load, tmp_path / "none")
    assert "tokenizer.json; a target" in report(Tokenizer.load, tmp_path)
    # transformers would build an empty tokenizer of the class that the config names.
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert "tokenizer.json; a target" in report(Tokenizer.load, tmp_path)
    whole = tokenizer.backend.to_str()
    path = tmp_path / "tokenizer.json"
    for damaged in ("", "{}", whole[: len(whole) // 2]):
        path.write_text(damaged)
        assert f"cannot read {path}: " in report(Tokenizer.load, tmp_path)
    path.write_text(whole)
    for place in (tmp_path, path):
        bare = Tokenizer.load(place)
        assert bare.encode("how?") == tokenizer.encode("how?")
        assert "; pass plain text" in report(bare.encode_chat, CHAT)
