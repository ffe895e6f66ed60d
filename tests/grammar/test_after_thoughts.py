"""Texts that follow a grammar after their thoughts: what may follow is the same token by token and
in a tree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers_made import byte_level

from dart_jax.grammar.after_thoughts import AfterThoughts
from dart_jax.grammar.matching import Grammars
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.text.thoughts import ThoughtMarks
from dart_jax.text.tokenizer import Tokenizer

BACKEND = byte_level()
BACKEND.add_special_tokens(["<end>"])
BACKEND.add_tokens(["<think>", "</think>"])
TOKENIZER = Tokenizer(BACKEND)
SIZE = TOKENIZER.vocab_size
EOS, BEGIN, LAST = map(BACKEND.token_to_id, ("<end>", "<think>", "</think>"))
GRAMMARS = Grammars(TOKENIZER, SIZE, (EOS,))
SOURCE = GRAMMARS.check(StructuredOutputs(regex="(qz|zq)+"))
IDS = [*TOKENIZER.encode("qz"), EOS, BEGIN, LAST]
NODES, DEPTH = 9, 4


def start(opened):
    marks = ThoughtMarks(None if opened else BEGIN, LAST)
    return AfterThoughts(GRAMMARS.start(SOURCE), marks, GRAMMARS)


def allowed(words):
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
    return {id for id in IDS if bits[id]}


def root_of(path, opened):
    """What may follow a text that is read token by token."""
    text = start(opened)
    for token in path:
        text.advance([token])
    return allowed(text.fit(np.zeros((4, 1), np.int32), 0, DEPTH).masks[0])


@pytest.mark.parametrize(
    ("path", "opened", "expected"),
    [
        ("", False, {"q", "z", "<think>"}),
        ("q", False, {"z"}),
        ("<think>", False, {"q", "z", "<think>", "</think>"}),
        ("", True, {"q", "z", "<think>", "</think>"}),
        ("qz</think>", True, {"q", "z"}),
        ("<think>q</think>qz", False, {"q", "z", "<end>"}),
        ("<think>q</think>qz", True, {"q", "z", "<end>"}),
        ("</think>z", True, {"q"}),
    ],
)
def test_what_may_follow(path, opened, expected):
    ids = TOKENIZER.encode(path)
    assert {BACKEND.id_to_token(id) for id in root_of(ids, opened)} == expected


@given(st.data(), st.booleans())
def test_trees_fit(data, opened):
    """Every node may follow its parent, and has the mask of its path."""
    past = []
    for _ in range(data.draw(st.integers(0, 6))):
        choices = sorted(root_of(past, opened) - {EOS})
        past.append(data.draw(st.sampled_from(choices)))
    text = start(opened)
    text.advance(past)
    tree = np.zeros((4, 20), np.int32)
    for node in range(1, data.draw(st.integers(1, 20))):
        parent = data.draw(st.integers(0, node - 1))
        tree[:3, node] = data.draw(st.sampled_from(IDS)), parent, tree[2, parent] + 1
    tokens, parents, depth, _ = (fitted := text.fit(tree, NODES, DEPTH)).tree
    assert depth.max() <= DEPTH
    paths = {0: list(past)}
    for node in range(1 + np.count_nonzero(depth)):
        if node:
            parent, token = int(parents[node]), int(tokens[node])
            assert depth[node] == depth[parent] + 1
            assert token in allowed(fitted.masks[parent])
            paths[node] = [*paths[parent], token]
        if EOS not in paths[node]:
            assert allowed(fitted.masks[node]) == root_of(paths[node], opened)
    assert {id for id in IDS if text.allows(np.array([id]))} == root_of(past, opened)
