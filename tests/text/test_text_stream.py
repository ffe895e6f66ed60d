"""Streamed text: the same as decoding at once, never half a character, stopped where it should."""

import functools
import itertools
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers_made import KINDS, TEXTS, byte_tokens

from dart_jax.errors import UserError
from dart_jax.serve.logprobs import TokenTexts
from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer

each_kind = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def tokenizer(kind):
    return Tokenizer(KINDS[kind]())


@functools.cache
def alphabet(kind):
    """Ids of many sorts, so chosen that they meet often."""
    made = tokenizer(kind)
    single = byte_tokens(made.backend)
    chosen = [single[n] for n in (*b"\n <a", 0x80, 0xAC, 0x82, 0xE2, 0xC3, 0xA9, 0xF0, 0x9F, 0xFF)]
    spaces = [id for token, id in made.get_vocab().items() if set(token) <= {"▁", "Ġ"}]
    added = list(made.backend.get_added_tokens_decoder())
    return [*chosen, *spaces, *added, *range(270, made.vocab_size), made.vocab_size + 5]


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
    made, ids = tokenizer(kind), data.draw(ids_of(kind))
    whole = made.decode(ids)
    given_out = ""
    for piece in pieces(TextStream(made), ids):
        given_out += piece
        assert whole.startswith(given_out)
    assert given_out == whole


@pytest.mark.long(keep=1)
@each_kind
@given(data=st.data())
def test_returned_pieces_are_final(kind, data):
    """So no piece ends in a part of a character, or is taken back."""
    made, ids = tokenizer(kind), data.draw(ids_of(kind))
    stream = TextStream(made)
    given_out = "".join(map(stream.push, ids))
    for more in ([], alphabet(kind)[4:5], alphabet(kind)[5:7], ids[:3]):
        assert made.decode(ids + more).startswith(given_out)


def certain(kind, ids):
    """The text of ids, without what is only a part of a character."""
    made, single = tokenizer(kind), byte_tokens(tokenizer(kind).backend)
    if kind == "byte level":
        text = made.decode(ids)
        return text[:-1] if text.endswith("\ufffd") else text
    values = {id: value for value, id in enumerate(single)}
    shown = [id for id in ids if id not in made.special_ids and made.backend.id_to_token(id)]
    run = [*itertools.takewhile(values.__contains__, reversed(shown))][::-1]
    try:
        bytes(values[id] for id in run).decode()
    except UnicodeDecodeError:
        shown = shown[: len(shown) - len(run)]
    return made.decode(shown)


@pytest.mark.long(keep=1)
@each_kind
@given(data=st.data())
def test_stop_strings(kind, data):
    """Where no token is special, they are those of the text."""
    made = tokenizer(kind)
    ids = data.draw(ids_of(kind).map(lambda ids: [id for id in ids if id not in made.special_ids]))
    whole = made.decode(ids)
    cuts = st.tuples(st.integers(0, len(whole)), st.integers(1, 4))
    # Some decoders drop the space of a first word.
    inside = cuts.map(lambda cut: whole[cut[0] : cut[0] + cut[1]].lstrip(" ") or "a")
    stops = data.draw(st.lists(st.one_of(inside, st.sampled_from(["aa", "ab", "b", "€"]))))
    texts = [*(certain(kind, ids[:n]) for n in range(1, len(ids) + 1)), whole]
    ends = (stopped_at(text, stops) for text in texts)
    expected, stopped = next((end for end in ends if end[1]), (whole, False))
    stream = TextStream(made, stops)
    given_out = ""
    for piece in pieces(stream, ids):
        given_out += piece
        assert expected.startswith(given_out)
    assert (given_out, stream.stopped) == (expected, stopped)
    assert stream.push(ids[0] if ids else 0) == "" or not stopped


def said(kind, ids):
    """What whole tokens say, special ones by their names: characters, and whether the text has
    them."""
    texts = TokenTexts(tokenizer(kind))
    known = [id for id in ids if tokenizer(kind).backend.id_to_token(id)]
    parts = [(texts.bytes_of(id), id not in tokenizer(kind).special_ids) for id in known]
    shown = [of_text for part, of_text in parts for _ in part]
    whole = b"".join(part for part, _ in parts).decode(errors="ignore")
    lengths = [len(character.encode()) for character in whole]
    places = itertools.accumulate(lengths, initial=0)
    return [(character, shown[place]) for character, place in zip(whole, places, strict=False)]


def token_lists(kind):
    """Whole words, characters and special tokens."""
    made, single = tokenizer(kind), byte_tokens(tokenizer(kind).backend)
    special = [[id] for id in sorted(made.special_ids)]
    whole = [[single[n] for n in text.encode()] for text in ("a", "\n", "€", "user")]
    words = [made.backend.encode(t, add_special_tokens=False).ids for t in ("Hello a", "ll")]
    parts = st.lists(st.sampled_from([*special, *special, *whole, *words]), max_size=6)
    return parts.map(lambda several: [*itertools.chain(*several)])


@each_kind
@given(data=st.data())
def test_stop_strings_with_special_tokens(kind, data):
    """As in transformers, they are those of what all tokens say, while the text lacks names."""
    made, ids = tokenizer(kind), data.draw(token_lists(kind))
    whole = said(kind, ids)
    cuts = st.tuples(st.integers(0, max(len(whole) - 1, 0)), st.integers(1, 24))
    text = "".join(character for character, _ in whole)
    inside = cuts.map(lambda cut: text[cut[0] : cut[0] + cut[1]] or "a")
    stops = data.draw(st.lists(inside, min_size=1, max_size=2))
    expected, count = None, len(ids)
    for count in range(1, len(ids) + 1):
        so_far = said(kind, ids[:count])
        text = "".join(character for character, _ in so_far)
        before, stopped = stopped_at(text, stops)
        if stopped:
            expected = "".join(c for c, shown in so_far[: len(before)] if shown)
            break
    stream = TextStream(made, stops)
    given_out = "".join(map(stream.push, ids[:count]))
    assert stream.stopped == (expected is not None)
    if expected is not None:
        dropped = kind != "byte level" and expected.startswith(" ")  # of a first word
        assert given_out == expected[dropped:]


def test_stop_strings_are_those_of_transformers():
    if os.environ.get("DART_REQUIRE_PARITY") != "1":
        pytest.importorskip("torch")
    import torch
    import transformers

    for kind in KINDS:
        made = tokenizer(kind)
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=made.backend)
        start, user = (
            made.backend.token_to_id("<s>"),
            made.backend.encode("user", add_special_tokens=False).ids,
        )
        ids = [*made.backend.encode("Hello", add_special_tokens=False).ids, start, *user, start]
        for stop in (
            "<s>",
            "<s>user",
            "<s>us",
            "o<s>",
            "s>u",
            "r<s>",
            " Hello",
            "user",
            "Hellouser",
        ):
            criterion = transformers.StopStringCriteria(theirs, [stop])
            counts = range(1, len(ids) + 1)
            ends = [n for n in counts if criterion(torch.tensor([ids[:n]]), None).item()]
            stream = TextStream(made, stop)
            ours = [n for n in counts if (stream.push(ids[n - 1]), stream.stopped)[1]]
            assert ours[:1] == ends[:1], (kind, stop)


@each_kind
@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_is_not_held_back(kind, text):
    """At most one character (or run of byte tokens) of a well-formed text waits."""
    made = tokenizer(kind)
    stream, given_out = TextStream(made), ""
    ids = made.backend.encode(text, add_special_tokens=False).ids
    byte = set(byte_tokens(made.backend)) if kind != "byte level" else set()
    for n, id in enumerate(ids, 1):
        given_out += stream.push(id)
        so_far = made.decode(ids[:n])
        if id not in byte and not so_far.endswith("\ufffd"):
            assert given_out == so_far


def test_the_beginning_of_a_stop_string_waits():
    made = tokenizer("byte level")
    single = byte_tokens(made.backend)
    stream = TextStream(made, ["END", "\n\n"])
    found = [stream.push(single[n]) for n in b"a\nEN\nENE"]
    assert found == ["a", "", "\n", "", "EN", "\n", "", "EN"]
    assert [stream.push(single[n]) for n in b"ND!"] == ["", "", ""]
    assert stream.stopped
    assert stream.finish() == ""
    one = TextStream(made, "ab")  # a string is one stop string, not its letters
    assert "".join(pieces(one, [single[n] for n in b"ba!"])) == "ba!"


def test_empty_stop_strings_are_refused():
    with pytest.raises(UserError, match="must not be empty"):
        TextStream(tokenizer("byte level"), ["a", ""])
    with pytest.raises(UserError, match="half of a surrogate pair, which no text does"):
        TextStream(tokenizer("byte level"), "\ud83d")


@each_kind
@pytest.mark.parametrize("text", ["plain words ", "\x80"])
def test_the_cost_of_a_token_does_not_grow(kind, text):
    made = tokenizer(kind)
    single = byte_tokens(made.backend)
    invalid = [single[0x80]] if text == "\x80" else made.encode(text)

    def decoded(repeats):
        """How many ids are handed to the decoder."""
        handed = []
        counting = Tokenizer(KINDS[kind]())
        counting.decode = lambda ids: handed.append(len(ids)) or made.decode(ids)
        stream = TextStream(counting)
        for id in invalid * repeats:
            stream.push(id)
        stream.finish()
        return sum(handed)

    assert decoded(2000) < 2.2 * decoded(1000)
    began = time.perf_counter()
    decoded(2000)
    assert time.perf_counter() - began < 20
