"""Streamed text: the same as decoding at once, never half a character, stopped where it should."""

import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import report
from tokenizers_made import KINDS, TEXTS, byte_tokens

from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer

each_kind = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def tokenizer(kind):
    return Tokenizer(KINDS[kind]())


@functools.cache
def alphabet(kind):
    """Ids of many sorts, so chosen that they meet often."""
    coder = tokenizer(kind)
    single = byte_tokens(coder.backend)
    members = [single[n] for n in (*b"\n <a", 0x80, 0xAC, 0x82, 0xE2, 0xC3, 0xA9, 0xF0, 0x9F, 0xFF)]
    spaces = [id for token, id in coder.get_vocab().items() if set(token) <= {"▁", "Ġ"}]
    added = list(coder.backend.get_added_tokens_decoder())
    return [*members, *spaces, *added, *range(270, coder.vocab_size), coder.vocab_size + 5]


def ids_of(kind):
    """Random ids, and tokens of text, cut anywhere."""
    texts = st.lists(st.sampled_from(["€", "é", "👩‍👧", "日", "a b", "  ", "\ufffd", "ll"]))
    single = byte_tokens(tokenizer(kind).backend)
    as_bytes = texts.map(lambda parts: [single[n] for n in "".join(parts).encode()])
    random = st.lists(st.sampled_from(alphabet(kind)))
    return st.lists(st.one_of(random, as_bytes), max_size=4).map(
        lambda parts: [*itertools.chain(*parts)]
    )


def pieces(stream, ids):
    return [*map(stream.push, ids), stream.finish()]


def stopped_at(text, stops):
    """The text before the stop string that a reader of single characters would see first."""
    for end in range(len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return text[: min(begins)], True
    return text, False


@each_kind
@given(data=st.data())
def test_pieces_joined_are_the_text(kind, data):
    coder, ids, skip = tokenizer(kind), data.draw(ids_of(kind)), data.draw(st.booleans())
    whole = coder.decode(ids, skip_special_tokens=skip)
    output = ""
    for piece in pieces(TextStream(coder, skip_special_tokens=skip), ids):
        output += piece
        assert whole.startswith(output)
    assert output == whole


@each_kind
@given(data=st.data())
def test_a_text_that_continues_another(kind, data):
    """It is what it adds to that, also a space before its first word."""
    coder, ids, prompt = tokenizer(kind), data.draw(ids_of(kind)), tokenizer(kind).encode("all")
    shown = data.draw(st.sampled_from([(), sorted(coder.special_ids)[:1]]))
    kept = [id for id in ids if id not in coder.special_ids or id in shown]
    whole = coder.decode([*prompt, *kept], skip_special_tokens=False)
    before = coder.decode(prompt, skip_special_tokens=False)
    text = "".join(pieces(TextStream(coder, shown=shown, continues=True), ids))
    assert before + text == whole


def certain(kind, ids):
    """The text of ids, without what is only a part of a character."""
    coder, single = tokenizer(kind), byte_tokens(tokenizer(kind).backend)
    if kind == "byte level":
        text = coder.decode(ids)
        return text[:-1] if text.endswith("\ufffd") else text
    values = {id: value for value, id in enumerate(single)}
    visible = [id for id in ids if id not in coder.special_ids and coder.backend.id_to_token(id)]
    run = [*itertools.takewhile(values.__contains__, reversed(visible))][::-1]
    try:
        bytes(values[id] for id in run).decode()
    except UnicodeDecodeError:
        visible = visible[: len(visible) - len(run)]
    return coder.decode(visible)


@pytest.mark.long(keep=1)
@each_kind
@given(data=st.data())
def test_stop_strings(kind, data):
    """Without special tokens, they are those of the text."""
    coder = tokenizer(kind)
    ids = data.draw(ids_of(kind).map(lambda ids: [id for id in ids if id not in coder.special_ids]))
    whole = coder.decode(ids)
    cuts = st.tuples(st.integers(0, len(whole)), st.integers(1, 4))
    # Some decoders drop the space of a first word.
    inside = cuts.map(lambda cut: whole[cut[0] : cut[0] + cut[1]].lstrip(" ") or "a")
    stops = data.draw(st.lists(st.one_of(inside, st.sampled_from(["aa", "ab", "b", "€"]))))
    texts = [*(certain(kind, ids[:n]) for n in range(1, len(ids) + 1)), whole]
    ends = (stopped_at(text, stops) for text in texts)
    expected, stopped = next((end for end in ends if end[1]), (whole, False))
    stream = TextStream(coder, stops)
    output = ""
    for piece in pieces(stream, ids):
        output += piece
        assert expected.startswith(output)
    assert (output, stream.stopped) == (expected, stopped)
    assert stream.push(ids[0] if ids else 0) == "" or not stopped


@each_kind
def test_names_of_special_tokens_as_stops(kind):
    """They end a text at their token; no text has them among other characters."""
    coder = tokenizer(kind)
    start, word = coder.backend.token_to_id("<s>"), coder.encode("Hello", add_special_tokens=False)
    stream = TextStream(coder, ["<s>", "never"])
    assert "".join(map(stream.push, [*word, start, *word])) == coder.decode(word)
    assert stream.stopped
    for stop, message in (
        ("<s>user", "'<s>user' holds the special token '<s>', which no text"),
        ("", "must not be empty"),
        ("\ud83d", "half of a surrogate pair, which no text does"),
    ):
        assert message in report(TextStream, coder, ["a", stop])


@each_kind
@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_is_not_held_back(kind, text):
    """At most one character (or run of byte tokens) of a well-formed text waits."""
    coder = tokenizer(kind)
    stream, output = TextStream(coder), ""
    ids = coder.backend.encode(text, add_special_tokens=False).ids
    byte = set(byte_tokens(coder.backend)) if kind != "byte level" else set()
    for n, id in enumerate(ids, 1):
        output += stream.push(id)
        so_far = coder.decode(ids[:n])
        if id not in byte and not so_far.endswith("\ufffd"):
            assert output == so_far


def test_the_beginning_of_a_stop_string_waits():
    coder = tokenizer("byte level")
    single = byte_tokens(coder.backend)
    stream = TextStream(coder, ["END", "\n\n"])
    parts_of_text = [stream.push(single[n]) for n in b"a\nEN\nENE"]
    assert parts_of_text == ["a", "", "\n", "", "EN", "\n", "", "EN"]
    assert [stream.push(single[n]) for n in b"ND!"] == ["", "", ""]
    assert stream.stopped
    assert stream.finish() == ""
    one = TextStream(coder, "ab")  # a string is one stop string, not its letters
    assert "".join(pieces(one, [single[n] for n in b"ba!"])) == "ba!"


@pytest.mark.parametrize("text", ["plain words ", "\x80"])
def test_the_cost_of_a_token_does_not_grow(text):
    coder = tokenizer("byte fallback")
    ids = [byte_tokens(coder.backend)[0x80]] if text == "\x80" else coder.encode(text)

    def decoded(repeats):
        """Counts the ids that are handed to the decoder."""
        counts = []
        counting = Tokenizer(KINDS["byte fallback"]())
        counting.decode = lambda ids, **_: counts.append(len(ids)) or coder.decode(ids)
        stream = TextStream(counting)
        for id in ids * repeats:
            stream.push(id)
        stream.finish()
        return sum(counts)

    assert decoded(400) < 2.2 * decoded(200)
