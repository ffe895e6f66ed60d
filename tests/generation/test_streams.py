"""Streams of several texts, in threads and event loops, and what public objects look like."""

import asyncio
import threading

import pytest

from dart_jax.engine.config import EngineConfig
from dart_jax.errors import UserError
from dart_jax.generation import Piece

PROMPTS = ["def heappush(heap, item):\n", "x", "import os\n"]
OPTIONS = {"max_new_tokens": 16}


def test_a_batch_is_streamed(demo):
    whole = demo.generate(PROMPTS, **OPTIONS)
    stream = demo.stream(PROMPTS, **OPTIONS)
    texts = [""] * 3
    for piece in stream:
        assert isinstance(piece, Piece)
        texts[piece.row] += piece
        assert stream.completions[piece.row].text.startswith(texts[piece.row])
    assert texts == [one.text for one in whole]
    assert [one.finish for one in stream.completions] == ["length"] * 3


def test_async(demo):
    """Two streams run at once, and the event loop is not blocked meanwhile; a third is closed."""
    expected = [demo.generate(prompt, **OPTIONS).text for prompt in PROMPTS[:2]]

    async def read(prompt):
        return "".join([piece async for piece in demo.stream(prompt, **OPTIONS)])

    async def main():
        tasks, ticks = [asyncio.create_task(read(prompt)) for prompt in PROMPTS[:2]], 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            ticks += 1
        stream = demo.stream(PROMPTS[0], **OPTIONS)
        first = await anext(stream)
        await stream.aclose()
        assert [piece async for piece in stream] == []
        return ticks, [task.result() for task in tasks], first, stream.completion

    ticks, texts, first, closed = asyncio.run(main())
    assert texts == expected
    assert ticks > 20
    assert closed.text.startswith(first)
    assert closed.finish is None


def test_closing_waits_for_the_step_that_is_running(demo):
    """From another thread, as a server does when its client is gone."""
    stream = demo.stream(PROMPTS[0], max_new_tokens=200)
    next(stream)
    pieces, failed = [], []

    def read():
        try:
            pieces.extend(stream)
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    stream.close()
    reader.join(60)
    assert not reader.is_alive()
    assert not failed
    assert stream.completion.finish is None or len(stream.completion.tokens) == 200


def test_nothing_is_generated_twice(demo):
    expected = demo.generate(PROMPTS[0], **OPTIONS)
    stream = demo.stream(PROMPTS[0], **OPTIONS)
    next(stream)
    for _ in range(2):
        stream.run()
        assert stream.completion.tokens.tolist() == expected.tokens.tolist()
    assert list(stream) == []
    with pytest.raises(UserError, match="already generated"):
        next(stream.steps())


def test_public_objects_are_one_short_line(demo):
    stream = demo.stream(PROMPTS, **OPTIONS)
    next(stream)
    engine = demo.engine(EngineConfig(slots=2, max_length=128, tree_nodes=8))
    completion = demo.generate(PROMPTS[0], **OPTIONS)
    for thing, words in (
        (demo, ["DartModel(", "qwen3", "10.2 M", "DART", "n-grams", "float32", "MB"]),
        (demo.ngram, ["NgramModel(", "n-grams of up to 3 tokens"]),
        (engine, ["Engine(", "DART", "8 nodes", "2 texts of up to 128 tokens"]),
        (stream, ["TextGeneration(3 texts", "running"]),
        (completion, ["Completion(", "16 tokens", "finish length"]),
    ):
        text = repr(thing)
        assert "\n" not in text
        assert len(text) < 500, text
        assert [word for word in words if word not in text] == []


def test_in_a_notebook(demo):
    assert demo._repr_html_().count("<tr>") == 6
    completion = demo.generate("a < b & c = '<br>", max_new_tokens=40, tree_nodes=4)
    page = completion._repr_html_()
    assert "<span" in page
    assert page.count("<span") == sum(piece.drafted for piece in completion.pieces)
    assert "<br>" not in page
    assert "".join(completion.pieces) == completion.text
