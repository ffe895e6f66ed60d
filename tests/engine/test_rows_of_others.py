"""What is read for one text leaves alone what others have in the pages that they share."""

import jax
import numpy as np
import pytest
from needs import native

from dart_jax.engine.request import Request
from dart_jax.engine.scheduler import Sequence
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.setup import runner_of

PROMPT = np.arange(100, 200, dtype=np.int32)


def runner_for(model):
    config = ServingConfig(slots=4, max_length=192, warmup="none", chunk=128)
    return runner_of(model, config, lambda sequence: None)


def ask(runner):
    """Queues the prompt; returns the text, and the log-probabilities that it will get."""
    logprobs = []
    request = Request(PROMPT, 40, logprobs=0)
    text = Sequence(request, 192, lambda update: logprobs.extend(update.logprobs.own))
    runner.scheduler.waiting.append(text)
    return text, logprobs


@native
@pytest.mark.parametrize("used", [1, 16, 100])
def test_reading_some_rows_of_a_chunk_writes_only_those(demo, used):
    """Those after them may be another text's, or the same one's if only the drafter reads it."""
    batch = runner_for(demo).batch
    pages = np.full((1, batch.shapes.pages_each), -1, np.int32)
    count = -(-len(PROMPT) // batch.shapes.page)
    pages[0, :count] = np.arange(count)[::-1]
    tokens = np.zeros((1, batch.shapes.chunks[0] + 1), np.int32)
    tokens[0, : len(PROMPT)] = PROMPT

    def read(rows):
        batch.read_tokens(tokens, np.zeros(1, np.int32), pages, rows, drafts=True)
        return jax.tree.map(np.array, batch._pools)

    whole = read(len(PROMPT))
    jax.tree.map(np.testing.assert_array_equal, read(used), whole)


@native
def test_a_text_read_for_drafts_changes_nothing_in_one_that_begins_alike(demo, monkeypatch):
    """It is read in several turns, in which the other one goes on."""
    runner = runner_for(demo)
    alone, right = ask(runner)
    while not alone.ended:
        runner.turn(lambda: 0.0)
    monkeypatch.setattr(runner, "_wants_drafts", lambda sequence: False)
    (one, _), (other, logprobs) = ask(runner), ask(runner)
    for _ in range(3):
        runner.turn(lambda: 0.0, 1)
    assert set(one.pages) & set(other.pages)
    assert not one.num_drafter_tokens
    monkeypatch.setattr(runner, "_tokens_of_turn", lambda: 16)
    monkeypatch.setattr(runner, "_wants_drafts", lambda sequence: sequence is one)
    turns = 0
    while not other.ended:
        runner.turn(lambda: 0.0, 1)
        turns += one in runner.scheduler.reading
    assert turns > 2
    while not one.ended:
        runner.turn(lambda: 0.0)
    assert one.text.tolist() == other.text.tolist() == alone.text.tolist()
    np.testing.assert_allclose(logprobs, right, rtol=0, atol=1e-5)
