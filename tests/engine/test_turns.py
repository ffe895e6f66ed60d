"""Prompts are read beside running texts such that neither waits long for the other."""

import numpy as np
import pytest
from needs import native

from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Request

OPTIONS = {"slots": 4, "max_length": 320, "warmup": "none", "tree_nodes": 0, "chunk": 128}

# Seconds of a step and of reading a row, of which a chunk costs some more.
STEP, ROW = 1.0, 0.02


class Turns:
    """An engine with a clock that only steps and rows move."""

    def __init__(self, model, monkeypatch):
        self.engine, self.seconds = model.engine(EngineConfig(**OPTIONS)), 0.0
        runner = self.engine.runner
        read, burst = runner.read, runner.burst

        def timed_read(*args):
            rows = read(*args)
            self.seconds += ROW * (rows + runner.shapes.chunk_rows)
            return rows

        def timed_burst(*args, **options):
            result = burst(*args, **options)
            self.seconds += STEP * result.steps
            return result

        monkeypatch.setattr(runner, "read", timed_read)
        monkeypatch.setattr(runner, "burst", timed_burst)
        monkeypatch.setattr(self.engine, "_clock", lambda: self.seconds)

    def ask(self, length, new, first=0):
        """Queues a prompt that begins as no other one."""
        tokens = np.arange(first, first + length, dtype=np.int32)
        return self.engine.add(Request(tokens, new))

    def take(self, count=1):
        """Takes steps; returns the seconds of the last one."""
        for _ in range(count):
            before = self.seconds
            self.engine.step()
        return self.seconds - before

    def until_it_writes(self, text):
        """Takes turns until a text has a token; returns their seconds."""
        seconds = []
        while len(text.text) == 0:
            seconds.append(self.take())
        return seconds


@pytest.fixture
def turns(demo, monkeypatch):
    return Turns(demo, monkeypatch)


@native
def test_a_long_prompt_lengthens_the_gaps_of_streams_by_little(turns):
    streams = [turns.ask(12, 200, first) for first in (1, 20)]
    gap = turns.take(21)  # the first ones also compile, which is not timed
    assert gap == STEP
    long = turns.ask(300, 2, 1000)
    seconds = turns.until_it_writes(long)
    assert 2 * gap < max(seconds) <= 2.5 * gap + ROW
    assert sum(seconds) < 3 * ROW * 300
    assert all(text.slot is not None for text in streams)


@native
def test_a_short_prompt_does_not_wait_for_a_long_one_nor_that_for_many(turns):
    turns.ask(12, 200)
    turns.take(20)
    long = turns.ask(300, 2, 1000)
    turns.take()
    short = turns.ask(20, 2, 2000)
    assert len(turns.until_it_writes(short)) <= 2
    for n in range(40):
        if len(long.text):
            break
        turns.ask(70, 1, 2100 + 40 * n)
        turns.take()
    assert n < 12


@native
def test_alone_a_prompt_is_read_in_whole_chunks(turns):
    assert len(turns.until_it_writes(turns.ask(300, 2))) == 3
