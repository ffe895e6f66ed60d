"""Tokenizers as people have them: the same ids and chats as AutoTokenizer makes of the files."""

import json
import warnings

import pytest
import transformers
from refusals import report
from tokenizers_made import KINDS, TEXTS, byte_fallback, byte_level

from dart_jax.errors import InputWarning
from dart_jax.models.architectures import ARCHITECTURES
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.text.tokenizer_files import _OWN_CLASS

TEXTS = [*TEXTS, "a<|new|>b </s>c", "<|im_start|>user\nhow are you?<|im_end|>"]
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
DECODER = {"content": "<|new|>", "lstrip": True, "special": True, "normalized": False}
NEW = {"content": "<|new|>", "lstrip": True, "rstrip": False, "single_word": False}


def write(directory, backend, config=None, model_type="llama", target=None, **files):
    """Writes a tokenizer with the files around it; names are given without `.json`; `target` is the
    class that the target's config names."""
    backend.save(str(directory / "tokenizer.json"))
    files |= {"config": {"model_type": model_type, "tokenizer_class": target}}
    if config is not None:
        files["tokenizer_config"] = config
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def unlisted():
    """A tokenizer whose </s> is an ordinary token of its vocabulary."""
    coder = byte_fallback()
    content = json.loads(coder.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] != "</s>"]
    return type(coder).from_str(json.dumps(content))


@pytest.mark.long(keep=6)
@pytest.mark.parametrize(
    ("kind", "config", "files"),
    [
        ("byte level", GENERIC | {"eos_token": "<|new|>"}, {}),
        ("byte level", GENERIC | {"additional_special_tokens": ["<|new|>", "</s>"]}, {}),
        ("byte level", GENERIC | {"extra_special_tokens": {"image_token": "<|new|>"}}, {}),
        ("byte level", GENERIC | {"added_tokens_decoder": {"340": DECODER}}, {}),
        ("byte level", GENERIC, {"added_tokens": {"<|new|>": 340}}),
        ("byte level", GENERIC, {"special_tokens_map": {"pad_token": NEW | {"normalized": True}}}),
        ("byte level", GENERIC | {"split_special_tokens": True}, {}),
        ("byte level", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}, {}),
        ("byte level", GENERIC | {"eos_token": "<|im_end|>"}, {"model_type": "qwen2"}),
        ("byte level", {"eos_token": "<|im_end|>"}, {"target": "Qwen2Tokenizer"}),
        ("unlisted", GENERIC | {"eos_token": "</s>"}, {}),
        ("byte fallback", GENERIC | {"bos_token": "<s>", "add_bos_token": False}, {}),
        ("byte fallback", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, {}),
        ("byte fallback", {"tokenizer_class": "LlamaTokenizerFast", "legacy": False}, {}),
        ("byte fallback", {"tokenizer_class": "LlamaTokenizer"}, {"model_type": "phi3"}),
        ("byte fallback", {"tokenizer_class": "GemmaTokenizer"}, {"model_type": "gemma2"}),
        ("metaspace", {"tokenizer_class": "NobodysTokenizer", "bos_token": "<s>"}, {}),
    ],
)
def test_ids_are_those_of_transformers(tmp_path, kind, config, files):
    backend = unlisted() if kind == "unlisted" else KINDS[kind]()
    write(tmp_path, backend, config, **files)
    ours, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.get_vocab() == theirs.get_vocab()
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"], text
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_whose_class_transformers_prefers():
    """A new version's preferences would otherwise give other ids without anybody having looked."""
    from transformers.models.auto import tokenization_auto as auto

    theirs = {
        name
        for name in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS & ARCHITECTURES.keys()
        if auto.TOKENIZER_MAPPING_NAMES[name] != "TokenizersBackend"
    }
    assert theirs <= set(_OWN_CLASS)


def test_what_only_others_need_is_not_read(tmp_path):
    """A tokenizer's code, which may do anything: that is told; and the target's config."""
    auto = {"auto_map": {"AutoTokenizer": ["mine.Slow", "mine.Fast"]}}
    write(tmp_path, byte_level(), {"tokenizer_class": "Mine", **auto})
    config = {"model_type": "llama", "rope_scaling": {"rope_type": "invented", "factor": "x"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(InputWarning, match="read without the tokenizer's own code"):
        coder = Tokenizer.load(tmp_path)
    assert coder.encode("how?") == byte_level().encode("how?").ids


CHAT = [{"role": "user", "content": "how?"}]
PLAIN = "{% for m in messages %}<s>{{ m.content }}{% endfor %}"
TOOLS = "{{ tools | length }} tools{% for m in messages %}<s>{{ m.content }}{% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m.role }}: {% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}; {% endfor %}"
)


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({"chat_template": "not this one"}, {"chat_template.jinja": PLAIN}),
        ({"chat_template": PLAIN}, {"chat_template.json": json.dumps({"chat_template": PLAIN})}),
        ({"chat_template": [{"name": "default", "template": PLAIN}]}, {}),
        (
            {},
            {
                "processor_config.json": json.dumps({"chat_template": PLAIN}),
                "chat_template.json": '{"chat_template": "not this one"}',
            },
        ),
        ({}, {"chat_template.json": json.dumps({"chat_template": PLAIN})}),
    ],
)
def test_a_chat_template_is_found(tmp_path, config, files):
    write(tmp_path, byte_level(), GENERIC | config)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with warnings.catch_warnings(action="error"):
        assert Tokenizer.load(tmp_path).render_chat(CHAT) == "<s>how?"
    if config.get("chat_template") == PLAIN:
        (tmp_path / "chat_template.json").write_text('{"chat_template": "another"}')
        with pytest.warns(InputWarning, match="another chat template for images"):
            assert Tokenizer.load(tmp_path).render_chat(CHAT) == "<s>how?"


def test_several_templates(tmp_path):
    """As transformers chooses: for tools, else the default; or by name."""
    write(tmp_path, byte_level(), GENERIC)
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text(TOOLS)
    (folder / "rag.jinja").write_text("rag {{ messages[0].content }}")
    coder = Tokenizer.load(tmp_path)
    assert "no default" in report(coder.render_chat, CHAT)
    assert coder.render_chat(CHAT, chat_template="rag") == "rag how?"
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    coder, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for options in ({}, {"tools": [{"name": "look"}]}, {"tools": []}, {"chat_template": "rag"}):
        expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, **options)
        assert coder.encode_chat(CHAT, **options) == expected["input_ids"]
    message = report(coder.render_chat, CHAT, chat_template="tools")
    assert "no chat template 'tools'; there is default, rag" in message


def test_a_template_that_reads_parts(tmp_path):
    """Of vision-language models: it would leave out a plain text, without a word."""
    write(tmp_path, byte_level(), GENERIC, chat_template={"chat_template": PARTS})
    coder = Tokenizer.load(tmp_path)
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    assert coder.render_chat([system, *CHAT]) == "system: Be brief.; user: how?; "
    assert CHAT == [{"role": "user", "content": "how?"}]


@pytest.mark.parametrize("begin", ["", "<s>"])
def test_special_tokens_around_a_processors_chat(tmp_path, begin):
    """Processors of transformers add a beginning that the template lacks; tokenizers do not."""
    template = begin + "USER: {{ messages[0].content }}"
    config = GENERIC | {"bos_token": "<s>"}
    write(tmp_path, byte_fallback(), config, chat_template={"chat_template": template})
    coder = Tokenizer.load(tmp_path)
    assert coder.encode_chat(CHAT) == coder.encode(coder.render_chat(CHAT).removeprefix("<s>"))
    (tmp_path / "chat_template.json").rename(tmp_path / "other.json")
    (tmp_path / "chat_template.jinja").write_text(template)
    coder = Tokenizer.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert coder.encode_chat(CHAT) == theirs.apply_chat_template(CHAT)["input_ids"]


@pytest.mark.parametrize("name", ["chat_template", "tokenizer_config", "added_tokens"])
def test_damaged_files(tmp_path, name):
    write(tmp_path, byte_level(), GENERIC)
    for content in ("{", "[]", "3"):
        (tmp_path / f"{name}.json").write_text(content)
        said = report(lambda: Tokenizer.load(tmp_path).chat_template)
        assert f"{name}.json: " in said


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "qwen.tiktoken"])
def test_other_forms_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00damaged")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert f"none can be built from {name}" in report(Tokenizer.load, tmp_path)
