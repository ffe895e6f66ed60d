"""Records of all forms are encoded as the right tokens, with the right ones supervised."""

import json

import duckdb
import numpy as np
import pytest
import tokenizers_made
from hypothesis import given
from hypothesis import strategies as st

from dart_jax.data.contents import Completion, Text, Tokens, parse
from dart_jax.data.messages import Chat
from dart_jax.errors import InputWarning, UserError
from dart_jax.text.tokenizer import Tokenizer
from train.data.encoding import Encoder
from train.data.examples import Example, read_all


def chat(*contents):
    """A chat with alternating turns, the user's first."""
    roles = ("user", "assistant")
    return Chat([{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)])


# Records

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_bad_records_are_told_where_they_are_or_skipped(tmp_path):
    deep = '{"a":' * 900 + "1" + "}" * 900
    path = tmp_path / "a.jsonl"
    path.write_text(f'\n{{"turns": [], "id": 1}}\n{{"text": "a"}}\n{{"messages": {deep}}}\n"b"')
    with pytest.raises(UserError, match=r"a\.jsonl:2: not a chat, .* has the fields turns, id;"):
        list(read_all([path]))
    errors = []
    contents = [each.content for each in read_all([path], bad=errors.append)]
    assert contents == [Text("a"), Text("b")]
    assert len(errors) == 2


def test_fields_that_are_not_used_are_named_once(tmp_path):
    known = {"messages": chat("a", "b").messages, "id": 1, "finish": "stop", "chosen": None}
    others = {"label": 0, "rubric": {"a": 1}, "novel": "else", "empty": []}
    path = write(tmp_path / "a.jsonl", known, known | others, known | others)
    with pytest.warns(InputWarning) as caught:
        assert len([*read_all([path, path])]) == 6
    assert [str(one.message) for one in caught] == [f"{path}:2: not used: rubric, novel"]


def test_files(tmp_path):
    """A table, which gives every record all fields, holds the same as lines."""
    shot = {"role": "assistant", "content": "y", "weight": 0}
    records = [
        {"messages": chat("a", "b").messages, "system": "s", "tools": TOOLS},
        {"messages": [*chat("x").messages, shot, *chat("a", "b").messages]},
        {"instruction": "a", "output": "b"},
        {"tokens": [1, 2], "prompt_length": 1},
        {"text": "c"},
    ]
    lines = write(tmp_path / "a.jsonl", *records)
    table, text = tmp_path / "b.parquet", tmp_path / "c.md"
    with duckdb.connect() as database:
        database.execute(f"copy (select * from read_json('{lines}')) to '{table}'")
    text.write_text("plain")
    found = list(read_all([lines, table, text]))
    assert [each.content for each in found] == [*map(parse, records * 2), Text("plain")]
    assert found[0].content.tools == TOOLS
    assert [each.where for each in found][4:6] == [f"{lines}:5", f"{table}, row 1"]
    assert [each.read for each in found] == sorted(each.read for each in found)
    assert found[-1].read == sum(path.stat().st_size for path in (lines, table, text))
    assert [each.digest for each in found[:5]] == [each.digest for each in found[5:10]]
    assert len({each.digest for each in found}) == 6
    assert len(list(read_all([lines, table, text], limit=3))) == 3
    for content, match in (
        ("да".encode("cp1251"), r"c\.md is not UTF-8 text"),
        (b"", r"c\.md holds no examples; leave it out"),
    ):
        text.write_bytes(content)
        with pytest.raises(UserError, match=match):
            list(read_all([text]))


# Tokens


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Makes encoders for a chat template."""

    def make(template, kind=tokenizers_made.byte_level, **options):
        directory = tmp_path_factory.mktemp("tokenizer")
        tokenizers_made.write_chat(directory, kind(), template)
        tokenizer = Tokenizer.load(directory)
        eos = tokenizer.wrapped.eos_token_id
        options = {"template_kwargs": {"enable_thinking": False}, "eos": eos} | options
        return Encoder(tokenizer, options.pop("vocab_size", tokenizer.vocab_size), **options)

    return make


def encode(encoder, *contents):
    return encoder.encode([Example(content, 0, f"f:{n}", 0) for n, content in enumerate(contents)])


def parts(encoder, document):
    """The text, split into alternating runs of unsupervised and supervised tokens."""
    cuts = np.flatnonzero(np.diff(document.supervised)) + 1
    runs = np.split(document.tokens, cuts)
    return [encoder.tokenizer.decode(run, skip_special_tokens=False) for run in runs]


HEADER = "<|im_start|>assistant\n"


@pytest.mark.parametrize("template", ["TURNS", "MARKED"])
def test_the_assistants_turns_are_supervised(encoder, template):
    encoder = encoder(getattr(tokenizers_made, template))
    # Contents that occur elsewhere too.
    contents = ["assistant", "a", "a", "assistant", "user<|im_end|>", "\n\na ", "日本", ""]
    (document,) = encode(encoder, chat(*contents))
    assert document.tokens.dtype == np.int32
    expected = []
    for question, answer in zip(contents[::2], contents[1::2], strict=True):
        expected.append(f"\n<|im_start|>user\n{question}<|im_end|>\n{HEADER}")
        expected.append(f"{answer}<|im_end|>")
    # The header's line end and the next answer's first ones can be one token.
    assert "".join(parts(encoder, document)) == "".join(expected).lstrip() + "\n"
    assert [part.strip() for part in parts(encoder, document)] == [
        part.strip() for part in [*expected, "\n"]
    ]


def test_templates_that_drop_earlier_thinking(thinking):
    first, second = "<think>\nhm\n</think>\n\ntwo", "<|im_start|> <t"
    (document,) = encode(thinking, chat("<think>", first, "3", second, "5", "six"))
    assert parts(thinking, document)[1::2] == [
        "two<|im_end|>",
        f"{second}<|im_end|>",
        "six<|im_end|>",
    ]
    # A header is what the template writes for the turns before, and asks with.
    assert parts(thinking, document)[4].endswith(f"{HEADER}<think>\n\n</think>\n\n")


WORDS = st.text(st.sampled_from("au <\n日|im_endthk/>"), max_size=8).map(str.strip)


@pytest.fixture(scope="module")
def thinking(encoder):
    return encoder(tokenizers_made.THINKING)


@given(st.lists(WORDS, min_size=2, max_size=6))
def test_any_chat_is_found_where_the_template_puts_it(thinking, contents):
    contents = [text.replace("</think>", "") for text in contents]
    (document,) = encode(thinking, chat(*contents))
    answers = [f"{text}<|im_end|>" for text in contents[1::2]]
    assert parts(thinking, document)[1::2] == answers


def test_words_that_begin_with_the_headers_space(encoder):
    """As Llama-2's: the first word's token holds the space before it."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
    )
    encoder = encoder(template, kind=tokenizers_made.byte_fallback)
    (document,) = encode(encoder, chat("so", "ello", "so", "e"))
    tokens = [encoder.tokenizer.backend.id_to_token(id) for id in document.tokens]
    supervised = [token for token, on in zip(tokens, document.supervised, strict=True) if on]
    assert "".join(supervised) == "▁ello▁</s>▁e▁</s>"


def test_completions_and_texts(encoder):
    encoder = encoder(tokenizers_made.TURNS)
    documents = encode(
        encoder,
        Completion("Hello, ", "world"),
        Text("Hello"),
        Tokens([5, 6, 7, 8], 2),
        Tokens([5, 6, 7, 8], 0),
        Text(""),
        Completion("", "Hello"),
    )
    end = encoder.tokenizer.backend.token_to_id("<|im_end|>")
    assert parts(encoder, documents[0])[1].strip() == "world<|im_end|>"
    assert documents[1].supervised.tolist() == [False] + [True] * (len(documents[1].tokens) - 1)
    assert documents[2].tokens.tolist() == [5, 6, 7, 8]
    assert documents[2].supervised.tolist() == [False, False, True, True]
    assert documents[3].supervised.tolist() == [False, True, True, True]
    assert len(documents[4].tokens) == 0
    assert documents[5].tokens[-1] == end
    assert not documents[5].supervised[0]
    assert [document.whole for document in documents] == [True, False, True, True, False, True]


def test_special_tokens_around_texts_are_not_learned(encoder):
    kind = tokenizers_made.byte_fallback
    own = kind().get_vocab_size()  # the end of a turn is a token more
    outside = encoder(tokenizers_made.TURNS, kind=kind, vocab_size=own)
    with pytest.raises(UserError, match=r"ends answers with the token \d+ \('<\|im_end\|>'\)"):
        encode(outside, Completion("he", "ll"))
    encoder = encoder(tokenizers_made.TURNS, kind=kind)
    text, completion = encode(encoder, Text("hell"), Completion("he", "ll"))
    begin = encoder.tokenizer.backend.token_to_id("<s>")
    assert text.tokens[0] == completion.tokens[0] == begin
    assert text.supervised.tolist()[:2] == [False, True]
    assert not completion.supervised[0]


def test_loss_on_all(encoder):
    encoder = encoder(tokenizers_made.TURNS, loss_on="all")
    for document in encode(encoder, chat("a", "b"), chat("a"), Tokens([5, 6, 7], 2)):
        assert document.supervised.tolist() == [False] + [True] * (len(document.tokens) - 1)


def test_templates_of_vision_language_models(encoder):
    """They read parts of contents, and one is for chats with tools."""
    parts_of = "{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>{% endfor %}"
    made = encoder("{% for m in messages %}<|im_start|>{{ m.role }} " + parts_of)
    (document,) = encode(made, chat("a", "b"))
    assert parts(made, document) == [
        "<|im_start|>user a<|im_end|><|im_start|>assistant ",
        "b<|im_end|>",
    ]
    folder = made.tokenizer.directory / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("{{ tools | length }} tools " + tokenizers_made.TURNS)
    several = Encoder(Tokenizer.load(made.tokenizer.directory), made.vocab_size)
    (document,) = encode(several, Chat(chat("a", "b").messages, [{"name": "look"}]))
    assert parts(several, document)[0].startswith("1 tools<|im_start|>user")


DEAF = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("content", "template", "match"),
    [
        (chat("a"), None, "f:1: the chat has no turn of the assistant"),
        (
            Tokens([3, 50], 1),
            None,
            r"f:1: the record has the token 50 .*, the target's are 0\.\.49;",
        ),
        (Tokens([3, -1], 1), None, "f:1: the record has the token -1"),
        (Text("日本"), None, r"f:1: the tokenizer returned the token \d+ .*, the target's are"),
        (Tokens([3, 4], 2), None, "f:1: it has no supervised tokens"),
        (chat("a", "b"), DEAF, "f:1: the chat template leaves out message 2, a turn of"),
        (chat("a", "b"), "{{ raise_exception('users first') }}", "rejects .*: users first"),
    ],
)
def test_what_cannot_be_encoded(encoder, content, template, match):
    made = encoder(template or tokenizers_made.TURNS, vocab_size=50)
    with pytest.raises(UserError, match=match):
        encode(made, Tokens([1, 2], 1), content)
    errors = []
    examples = [Example(each, 0, "f:1", 0) for each in (Tokens([1, 2], 1), content)]
    good, bad = made.encode(examples, bad=errors.append)
    assert good is not None
    assert bad is None
    assert len(errors) == 1


def test_a_chat_template_that_is_missing():
    bare = Encoder(Tokenizer(tokenizers_made.byte_level()), 400)
    with pytest.raises(UserError, match="chats in the data, but no chat template in the tokenizer"):
        encode(bare, chat("a", "b"))


def test_what_stands_beside_a_chat_is_rendered_as_transformers_does(encoder):
    tools = "{% if tools %}<s>{{ tools | tojson }}</s>{% endif %}"
    encoder = encoder(tools + tokenizers_made.TURNS)
    content = parse({"messages": chat("a", "b").messages, "system": "Be terse.", "tools": TOOLS})
    (document,) = encode(encoder, content)
    expected = encoder.tokenizer.wrapped.apply_chat_template(
        content.messages, tools=TOOLS, tokenize=False
    )
    assert "Be terse." in expected
    assert encoder.tokenizer.decode(document.tokens, skip_special_tokens=False) == expected
    assert [part.strip() for part in parts(encoder, document)][1] == "b<|im_end|>"


@pytest.mark.parametrize("template", ["TURNS", "THINKING"])
def test_turns_that_are_not_to_be_learned(encoder, template):
    encoder = encoder(getattr(tokenizers_made, template))
    contents = chat("a", "one", "b", "two", "c", "three")
    (document,) = encode(encoder, contents._replace(unlearned=(1, 5)))
    (all_turns,) = encode(encoder, contents)
    assert document.tokens.tolist() == all_turns.tokens.tolist()
    learned = [part.strip() for part in parts(encoder, document)[1::2]]
    assert learned == ["two<|im_end|>"]
    with pytest.raises(UserError, match="it has no supervised tokens"):
        encode(encoder, chat("a", "b")._replace(unlearned=(1,)))
