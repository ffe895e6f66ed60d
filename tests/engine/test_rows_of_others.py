"""What is read for one text leaves alone what others have in the pages that they share."""

import collections

import jax
import numpy as np
import pytest
from needs import native

from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Request

PROMPT = np.arange(100, 200, dtype=np.int32)
REQUEST = Request(PROMPT, 40, logprobs=0)


def engine_for(model):
    return model.engine(EngineConfig(slots=4, max_length=192, warmup="none", chunk=128))


def logprobs_of(outputs):
    return np.concatenate([output.logprobs(0).own for output in outputs])


@native
@pytest.mark.parametrize("used", [1, 16, 100])
def test_reading_some_rows_of_a_chunk_writes_only_those(demo, used):
    """Those after them may be another text's, or the same one's if only the drafter reads it."""
    runner = engine_for(demo).runner
    pages = np.full((1, runner.shapes.pages_each), -1, np.int32)
    count = -(-len(PROMPT) // runner.shapes.page)
    pages[0, :count] = np.arange(count)[::-1]
    tokens = np.zeros((1, runner.shapes.chunks[0] + 1), np.int32)
    tokens[0, : len(PROMPT)] = PROMPT

    def read(rows):
        runner.read_tokens(tokens, np.zeros(1, np.int32), pages, rows, drafts=True)
        return jax.tree.map(np.array, runner._pools)

    whole = read(len(PROMPT))
    jax.tree.map(np.testing.assert_array_equal, read(used), whole)


@native
def test_a_text_read_for_drafts_changes_nothing_in_one_that_begins_alike(demo, monkeypatch):
    """It is read in several turns, in which the other one goes on."""
    engine, outputs = engine_for(demo), collections.defaultdict(list)

    def step(limit=None):
        for sequence, output in engine.step(limit):
            outputs[sequence].append(output)

    alone = engine.add(REQUEST)
    while engine.busy:
        step()
    monkeypatch.setattr(engine, "_wants_drafts", lambda sequence: False)
    one, other = engine.add(REQUEST), engine.add(REQUEST)
    for _ in range(3):
        step(1)
    assert set(one.pages) & set(other.pages)
    assert not one.num_drafter_tokens
    monkeypatch.setattr(engine, "_tokens_to_read", lambda: 16)
    monkeypatch.setattr(engine, "_wants_drafts", lambda sequence: sequence is one)
    turns = 0
    while not other.ended:
        step(1)
        turns += one in engine.scheduler.reading
    assert turns > 2
    while engine.busy:
        step()
    assert one.text.tolist() == other.text.tolist() == alone.text.tolist()
    ours, right = logprobs_of(outputs[other]), logprobs_of(outputs[alone])
    np.testing.assert_allclose(ours, right, rtol=0, atol=1e-5)
