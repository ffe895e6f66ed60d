"""A text that has the name of a special token has its characters, not the token."""

import json
import re

import numpy as np
import pytest
from grammar_texts import END, GRAMMARS, TOKENIZER, allowed

from dart_jax.grammar.outputs import StructuredOutputs

OTHER = TOKENIZER.backend.token_to_id("<|other|>")
NAMES = ("<end>", "<|other|>")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("structure", "text"),
    [
        (lambda text: {"json": {"const": text}}, "{}"),
        (lambda text: {"regex": re.escape(text)}, "{0}{0}"),
        (lambda text: {"choice": [text]}, "a{}b"),
        (lambda text: {"grammar": f"root ::= {json.dumps(text)}"}, "é{}<"),
        (lambda text: {"grammar": f"start: {json.dumps(text)}"}, "{0}{0}"),
    ],
)
def test_names_are_written_out(name, structure, text):
    text = text.format(name)
    outputs = StructuredOutputs.of(structure(text))
    matcher, tokens = GRAMMARS.start(GRAMMARS.check(outputs)), []
    tree = matcher.fit(np.zeros((4, 1), np.int32), 60, 60).tree
    drafted = tree[0, 1 : 1 + np.count_nonzero(tree[2])].tolist()
    while END not in (choices := allowed(matcher)):
        tokens.append(choices[-1])
        matcher.advance(tokens[-1:])
        assert matcher.error is None
    written = json.dumps(text, ensure_ascii=False) if outputs.json else text
    assert TOKENIZER.decode(tokens) == written
    assert TOKENIZER.decode([token for token in drafted if token != END]) == written
    assert OTHER not in (*tokens, *drafted)


def test_tokens_themselves_stay():
    for grammar in (f"root ::= [a] <[{OTHER}]> [b]", f'start: "a" <[{OTHER}]> "b"'):
        matcher = GRAMMARS.start(GRAMMARS.check(StructuredOutputs(grammar=grammar)))
        matcher.advance(TOKENIZER.encode("a"))
        assert allowed(matcher) == [OTHER]
        matcher.advance([OTHER])
        assert matcher.error is None
        assert allowed(matcher) == list(TOKENIZER.encode("b"))
