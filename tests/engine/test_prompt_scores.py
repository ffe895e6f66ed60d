"""Scores of prompts: those of transformers, however they are read and whatever else is served."""

import dataclasses

import numpy as np
import pytest
from engine_requests import tokens_of
from needs import judge

from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Request
from dart_jax.errors import UserError
from dart_jax.model import DEMO

TEXT = (DEMO.parent / "errors.py").read_text()
SMALL = {"slots": 4, "page": 16, "max_length": 320, "warmup": "none", "tree_nodes": 2}


@pytest.fixture(scope="module")
def prompts(demo):
    tokens = tokens_of(demo, TEXT)
    return [tokens[:200], tokens[:33], tokens[90:107], tokens[5:7], tokens[:1]]


@pytest.fixture(scope="module")
def expected(prompts):
    """The log-probabilities of all tokens in the place of each but the first, by transformers."""
    torch, transformers = judge("torch"), pytest.importorskip("transformers")
    target = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype="float32")
    with torch.no_grad():
        every = [target(torch.tensor(each[None], dtype=torch.long)).logits[0] for each in prompts]
        return [torch.log_softmax(logits[:-1].double(), -1).numpy() for logits in every]


def scored(prompt, new=0, most=5, **options):
    return Request(prompt, new, prompt_logprobs=most, **options)


def check(prompt, scores, expected, most=5):
    """The scores are those expected, and the most likely tokens are in order."""
    own = np.take_along_axis(expected, prompt[1:, None].astype(int), axis=1)[:, 0]
    np.testing.assert_allclose(scores.own, own, atol=1e-3)
    assert scores.top.shape == scores.top_ids.shape == (len(own), most)
    np.testing.assert_allclose(
        scores.top, np.take_along_axis(expected, scores.top_ids.astype(int), axis=1), atol=1e-3
    )
    np.testing.assert_allclose(scores.top, -np.sort(-expected, axis=1)[:, :most], atol=1e-3)
    # Rounding may exchange tokens that are equally likely.
    for rank, logprob, row in zip(scores.ranks, own, expected, strict=True):
        assert (row > logprob + 1e-3).sum() < rank <= 1 + (row > logprob - 1e-3).sum()
    for rank, logprob, top in zip(scores.ranks, scores.own, scores.top, strict=True):
        if rank <= most:
            assert top[rank - 1] == logprob


@pytest.mark.parametrize(("chunk", "drafted"), [(16, True), (128, False)])
def test_scores_are_those_of_transformers(demo, prompts, expected, chunk, drafted):
    """In one chunk and in several, alone and beside others, with a text and without, with kept
    pages, which scored prompts do not use but which others find."""
    model = demo if drafted else demo.with_drafter(None)
    options = SMALL | {"chunk": chunk, "tree_nodes": 2 if drafted else None}
    engine = model.engine(EngineConfig(**options))
    [plain] = engine.run([Request(prompts[0], 8, logprobs=3)])
    for _ in range(2):
        *outputs, text = engine.run([*map(scored, prompts), scored(prompts[0], 8, 0, logprobs=3)])
        for n, output in enumerate(outputs):
            assert (len(output.tokens), output.finish) == (0, "length")
            check(prompts[n], output.prompt_logprobs, expected[n])
        assert text.tokens.tolist() == plain.tokens.tolist()
        check(prompts[0], text.prompt_logprobs, expected[0], 0)
    assert engine.scheduler.hits == 0
    [again] = engine.run([Request(prompts[0], 8)])
    assert again.tokens.tolist() == plain.tokens.tolist()
    assert engine.scheduler.hits >= 128


def test_several_prompts_of_a_chunk(demo, prompts, expected):
    """As on accelerators, beside prompts that are not scored."""
    engine = demo.engine(EngineConfig(**SMALL | {"chunk": 128}))
    shapes = engine.runner.shapes
    chunks = {"only_used": False, "together": True, "chunks": (32, 128)}
    engine.runner.shapes = dataclasses.replace(shapes, **chunks)
    others = [Request(prompt, 4) for prompt in prompts[:2]]
    first, *outputs, last = engine.run([others[0], *map(scored, prompts), others[1]])
    for n, output in enumerate(outputs):
        check(prompts[n], output.prompt_logprobs, expected[n])
    assert len(first.tokens) == len(last.tokens) == 4


@pytest.mark.parametrize("reads", [1, 4, 50])
def test_one_that_must_wait_again(demo, prompts, expected, reads):
    """Its scores are complete, and reported once: if it was read in part, as a whole, or has begun
    a text."""
    engine, outputs = demo.engine(EngineConfig(**SMALL | {"chunk": 48})), []
    sequence = engine.add(scored(prompts[0], 9))
    for _ in range(reads):
        engine._read()
    if reads > 4:
        engine._burst(2, timed=False)
    outputs += engine.take_outputs()
    before = len(outputs)
    engine.scheduler._preempt(sequence)
    while engine.busy:
        outputs += engine.step()
    assert (before > 0) == (reads > 4)
    first, *others = [output for _, output in outputs]
    assert len(sequence.text) == 9
    check(prompts[0], first.prompt_logprobs, expected[0])
    assert all(output.prompt_logprobs is None for output in others)


def test_numbers_that_are_none(demo, prompts):
    target = demo.params["target"]
    norm = {"scale": target["norm"]["scale"] * np.nan}
    params = {**demo.params, "target": {**target, "norm": norm}}
    engine = dataclasses.replace(demo, params=params).engine(EngineConfig(**SMALL))
    for new in (0, 5):
        with pytest.raises(UserError, match="logits are NaN in a prompt"):
            engine.run([scored(prompts[1], new)])


def test_the_longest_and_the_shortest(demo, prompts):
    tokens = np.resize(prompts[0], 320)
    whole, least = demo.engine(EngineConfig(**SMALL)).run(
        [scored(tokens), scored(tokens[:1], most=0)]
    )
    assert len(whole.prompt_logprobs.own) == 319
    assert least.prompt_logprobs.top.shape == (0, 0)
