"""Structured outputs: drafted texts are those of plain decoding, and follow their grammar."""

import dataclasses
import json

import jsonschema
import numpy as np
import pytest
from decoding import begin_model
from hypothesis import given, settings
from json_schemas import SCHEMAS

import dart_jax.engine.model_runner
from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs

PROMPTS = ["def heappush(heap, item):\n", "import os\n", "class "]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["dart", "ngram", "lookup"])
def test_drafted_texts_are_those_of_plain_decoding(demo, method, temperature):
    """And of a batch in which only some rows draft well."""
    drafter = {"dart": demo.drafter, "ngram": NgramConfig(), "lookup": PromptLookupConfig()}
    drafting = demo.with_drafter(drafter[method])
    options = {"max_new_tokens": 150, "temperature": temperature, "seed": 3}
    options["structured_outputs"] = {"json": SCHEMA}
    expected = demo.generate(PROMPTS, tree_nodes=0, **options)
    texts = drafting.generate(PROMPTS, tree_nodes=6, **options)
    for one, other in zip(texts, expected, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        assert one.finish == other.finish
        if one.finish == "stop":
            jsonschema.validate(json.loads(one.text), SCHEMA)
    assert any(one.finish == "stop" for one in texts)
    if method != "lookup":
        assert sum(one.drafted.sum() for one in texts) > 0


@pytest.mark.parametrize("nodes", [0, 6])
def test_bursts_have_steps(demo, monkeypatch, nodes):
    """In which programs fit drafts; where they cannot, texts are the same."""
    grammar = demo.grammars.check(StructuredOutputs(json=SCHEMA))
    options = {"nodes": nodes, "max_length": 256, "grammar": grammar}
    prompts = [np.array(demo.tokenizer.encode(prompt)) for prompt in PROMPTS]

    def decoded(limit=None):
        fresh = dataclasses.replace(demo)  # how far texts are trusted is learned anew
        batch = begin_model(fresh, prompts, 100, **options, burst=limit)
        bursts = sum(1 for _ in batch)
        return bursts, batch.generation()

    (many, one), (few, other) = decoded(limit=1), decoded()
    monkeypatch.setattr(dart_jax.engine.model_runner, "fits_in_programs", lambda execution: False)
    without, last = decoded()
    assert many == without > 4 * few
    for text, *others in zip(one.tokens, other.tokens, last.tokens, strict=True):
        for tokens in others:
            np.testing.assert_array_equal(tokens, text)
    np.testing.assert_array_equal(other.steps, one.steps)


@settings(max_examples=4)
@given(SCHEMAS)
def test_random_schemas(demo, schema):
    """Texts at two temperatures in one batch, with large trees and without."""
    for temperature in (0.0, 1.0):
        options = {"max_new_tokens": 60, "temperature": temperature, "seed": 1}
        options["structured_outputs"] = {"json": schema}
        plain = demo.generate(PROMPTS, tree_nodes=0, **options)
        for one, other in zip(demo.generate(PROMPTS, tree_nodes=6, **options), plain, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            if one.finish == "stop":
                jsonschema.validate(json.loads(one.text), schema)


def test_texts_end_with_their_grammar(demo):
    """Whatever else ends a text; a choice is made among what top-k leaves of the allowed tokens,
    and log-probabilities are the target's own."""
    outputs = {"choice": ["yes", "no"]}
    options = {"structured_outputs": outputs, "logprobs": 2, "tree_nodes": 0}
    one = demo.generate(PROMPTS[0], temperature=1.0, top_k=1, eos_token_id=(), **options)
    greedy = demo.generate(PROMPTS[0], **options)
    assert one.text == greedy.text in ("yes", "no")
    assert (one.finish, one.tokens[-1] in demo.eos) == ("stop", True)
    free = demo.generate(PROMPTS[0], tree_nodes=0, max_new_tokens=1, logprobs=2)
    assert one.top_ids[0].tolist() == free.top_ids[0].tolist()


def test_steps_report_drafts_that_fit(demo):
    generation = demo.stream(PROMPTS[0], tree_nodes=6, structured_outputs={"regex": "[0-9 ]{20}"})
    drafts = [step.draft for step in generation.steps(with_drafts=True) if step.draft is not None]
    assert drafts
    for draft in drafts:
        tokens = draft.tree[0, 1:][draft.tree[2, 1:] > 0].tolist()
        texts = [demo.tokenizer.decode([token]) for token in tokens if token not in demo.eos]
        assert all(set(text) <= set("0123456789 ") for text in texts)


def test_texts_draft_what_fits(demo):
    """Nodes that the drafter does not propose."""
    prompt, outputs = "qwx zvk jqp " * 6, {"regex": "[a-z ]{40}"}
    generation = demo.stream(prompt, tree_nodes=8, structured_outputs=outputs)
    drafts = [step.draft for step in generation.steps(with_drafts=True) if step.draft is not None]
    own = [
        token
        for draft in drafts
        for token, _, depth in draft.tree.T.tolist()
        if depth and len(draft.ids) and token not in draft.ids[min(depth, len(draft.ids)) - 1]
    ]
    assert own
    assert set(own) <= set(demo.tokenizer.encode(prompt)) | set(generation.completion.tokens)


def test_wrong_ones_are_refused(demo):
    with pytest.raises(UserError, match="unclosed group"):
        demo.generate(PROMPTS[0], structured_outputs={"regex": "("})
    with pytest.raises(UserError, match="have no xml"):
        demo.generate(PROMPTS[0], structured_outputs={"xml": "a"})
