"""Grammars: what users ask for, tokens that may follow, and trees that fit."""

import json
import re

import jsonschema
import numpy as np
import pytest
from grammar_texts import END, TOKENIZER, judge
from hypothesis import given
from hypothesis import strategies as st
from json_schemas import SCHEMAS
from tokenizers_made import byte_level

from dart_jax.errors import UserError
from dart_jax.grammar import matching
from dart_jax.grammar.matching import Grammars
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.text.tokenizer import Tokenizer

SIZE = TOKENIZER.vocab_size + 5  # a target may have more embeddings
GRAMMARS = Grammars(TOKENIZER, SIZE, (END,))
ROOT = np.zeros((4, 1), np.int32)
NODES, DEPTH = 12, 5


def started(**structure):
    """The beginning of a text under a grammar."""
    return GRAMMARS.start(GRAMMARS.check(StructuredOutputs.of(structure)))


def tokens_of(words):
    """The tokens of a mask."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits)


def random_tree(draw):
    """A packed tree of likely and unlikely tokens."""
    tree = np.zeros((4, 40), np.int32)
    count = draw(st.integers(0, 39))
    for node in range(1, count + 1):
        parent = draw(st.integers(0, node - 1))
        token = draw(st.one_of(st.sampled_from(TOKENIZER.encode('{"a1')), st.integers(0, SIZE - 1)))
        tree[:3, node] = token, parent, tree[2, parent] + 1
    return tree


@given(st.data(), SCHEMAS)
def test_trees_fit(data, schema):
    """Every node may follow its parent, and every mask is that of the node's path, which a text of
    its own finds."""
    matcher = started(json=schema)
    tree, masks = matcher.fit(random_tree(data.draw), NODES, DEPTH)
    assert matcher.error is None
    assert tree.shape == (4, NODES + 1)
    tokens, parents, depth, scores = tree
    assert (scores.view(np.float32) <= 0).all()
    count = int(np.count_nonzero(depth))
    assert not tree[:, count + 1 :].any()
    assert depth.max() <= DEPTH
    children = list(
        zip(parents[1 : count + 1].tolist(), tokens[1 : count + 1].tolist(), strict=True)
    )
    assert len(set(children)) == count
    for node in range(count + 1):
        path = []
        place = node
        while place:
            assert tokens[place] in tokens_of(masks[parents[place]])
            assert depth[place] == depth[parents[place]] + 1
            path.insert(0, int(tokens[place]))
            place = int(parents[place])
        if END in path:
            assert node not in parents[1 : count + 1]
            continue
        alone = started(json=schema)
        alone.advance(path)
        assert alone.error is None
        own = alone.fit(ROOT, 0, DEPTH).masks[0]
        np.testing.assert_array_equal(masks[node], own)
        assert tokens_of(own).max() < TOKENIZER.vocab_size


@given(st.data(), SCHEMAS, st.booleans())
def test_texts_that_end_are_valid(data, schema, compact):
    """Compact ones have no blanks and line breaks outside of their strings."""
    matcher, text = started(json=schema, disable_any_whitespace=compact), []
    for _ in range(60):
        choices = tokens_of(matcher.fit(ROOT, 0, 0).masks[0])
        token = int(data.draw(st.sampled_from(choices)))
        if token == END:
            written = TOKENIZER.decode(text)
            assert not compact or not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", written))
            jsonschema.validate(json.loads(written), schema)
            return
        text.append(token)
        matcher.advance([token])
        assert matcher.error is None


# An object within another.
PAIR = {
    "properties": {"pair": {"$ref": "#/$defs/pair"}},
    "$defs": {"pair": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


@pytest.mark.parametrize(
    ("outputs", "good", "bad"),
    [
        ({"json_object": True}, ['{"a": [1, null]}'], ["[1]", "{a}"]),
        ({"json": '{"type": "integer"}'}, ["-12"], ["1.5", '"x"']),
        ({"json": True}, ['"x"', "[]"], ["x"]),
        ({"json": PAIR}, ['{"pair": {"a": 1}}', "{}"], ['{"b": 1}', '{"pair": {"a": 1, "b": 1}}']),
        ({"json": PAIR | {"additionalProperties": True}}, ['{"b": 1}'], ['{"pair": {"b": 1}}']),
        ({"json": PAIR | {"anyOf": [{"required": ["b"]}]}}, ['{"pair": {}, "b": 1}'], ["{}"]),
        ({"json": {"allOf": [PAIR["$defs"]["pair"], {"required": ["b"]}]}}, ['{"b": 1}'], ["{}"]),
        ({"json": {"properties": {}, "required": ["b"]}}, ['{"b": 1}'], ["{}"]),
        ({"json": {"properties": {"properties": {}}}}, ['{"properties": 1}'], ['{"b": 1}']),
        ({"regex": "[a-c]+[.]"}, ["abc."], ["abd.", "."]),
        ({"regex": "^ab?$"}, ["a", "ab"], ["b", "abb"]),
        ({"choice": ["a.b", "žluť (x)", "a"]}, ["a.b", "žluť (x)", "a"], ["axb", "z"]),
        ({"grammar": 'root ::= "a" | "b" root'}, ["a", "bba"], ["ab"]),
        ({"grammar": 'start: "a" B\nB: /x+/'}, ["axx"], ["a", "b"]),
    ],
)
def test_kinds(outputs, good, bad):
    follows = judge(**outputs)
    assert [text for text in good if not follows(text)] == []
    assert [text for text in bad if follows(text)] == []


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "need one of json, json_object, regex, choice, grammar, got nothing"),
        ({"regex": "a", "choice": ["b"]}, "got regex and choice"),
        ({"structural_tag": "{}"}, "have no structural_tag"),
        ({"regex": 5}, "a regex of the wrong type"),
        ({"choice": []}, "a choice of the wrong type"),
        ({"json": False}, "schema false allows no text"),
        ({"json": {"type": "bar"}}, "the JSON schema cannot be used: Invalid type: bar"),
        ({"json": {"properties": {}, "required": 5}}, "the JSON schema cannot be used"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"grammar": "start: start"}, "the grammar cannot be used: it allows no text"),
        ({"json": {"$ref": "#"}}, "the JSON schema cannot be used"),
        ({"grammar": "start: nope"}, "the grammar cannot be used"),
    ],
)
def test_what_cannot_be_used(outputs, message):
    with pytest.raises(UserError) as caught:
        GRAMMARS.check(StructuredOutputs.of(outputs))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_target_without_an_end():
    for eos, message in ((), "need a target with an end-of-sequence"), ((5,), "a special token"):
        with pytest.raises(UserError, match=message):
            Grammars(TOKENIZER, SIZE, eos).check(StructuredOutputs(regex="a"))


def test_a_tokenizer_with_more_tokens_than_the_target():
    """Their bits are left out."""
    backend = byte_level()
    backend.add_special_tokens(["<end>", *(f"<{n}>" for n in range(40))])
    size = backend.token_to_id("<end>") + 1
    grammars = Grammars(Tokenizer(backend), size, (size - 1,))
    matcher = grammars.start(grammars.check(StructuredOutputs(regex="[ab]*")))
    masks = matcher.fit(np.zeros((4, 4), np.int32), 3, 3).masks
    assert masks.shape == (4, -(-size // 32))
    assert size - 1 in tokens_of(masks[0])


def test_a_text_that_leaves_its_grammar():
    matcher = started(regex="ab")
    matcher.advance(TOKENIZER.encode("x"))
    assert "cannot go on under its grammar" in str(matcher.error)


def test_a_broken_lexer_is_replaced(monkeypatch):
    """Texts under a grammar share its lexer, which breaks for all where one of them takes too much
    work: the others go on, with the tokens that they had."""
    monkeypatch.setattr(matching, "_FUEL", 2_000)
    grammars = Grammars(TOKENIZER, SIZE, (END,))
    source = grammars.check(StructuredOutputs(regex=".*(a|b).{40}.*c"))
    root, texts = ROOT, [grammars.start(source) for _ in range(3)]
    texts[1].advance(TOKENIZER.encode("aaba "))
    before, after = (text.fit(root, 0, 0).masks for text in texts[:2])
    for token in TOKENIZER.encode("aaba cab abca aaaa abab aba cda abba "):
        texts[2].advance([token])
        texts[2].fit(root, 0, 0)
    assert "too many" in str(texts[2].error)
    for text, masks in ((texts[0], before), (texts[1], after), (grammars.start(source), before)):
        np.testing.assert_array_equal(text.fit(root, 0, 0).masks, masks)
        assert text.error is None
