"""Streams of several texts, in threads and event loops, and what public objects look like."""

import asyncio
import threading

import pytest

from dart_jax.engine.config import EngineConfig
from dart_jax.errors import UserError
from dart_jax.generation import Piece

PROMPTS = ["def heappush(heap, item):\n", "x", "import os\n"]
OPTIONS = {"max_new_tokens": 16}


@pytest.fixture(scope="module")
def model(demo):
    return demo


def test_a_batch_is_streamed(model):
    whole = model.generate(PROMPTS, **OPTIONS)
    stream = model.stream(PROMPTS, **OPTIONS)
    texts = [""] * 3
    for piece in stream:
        assert isinstance(piece, Piece)
        texts[piece.row] += piece
        assert stream.completions[piece.row].text.startswith(texts[piece.row])
    assert texts == [one.text for one in whole]
    assert [one.finish for one in stream.completions] == ["length"] * 3


def test_async(model):
    """Two streams run at once, and the event loop is not blocked meanwhile."""
    expected = [model.generate(prompt, **OPTIONS).text for prompt in PROMPTS[:2]]
    threads = set()

    async def read(prompt):
        text = ""
        async for piece in model.stream(prompt, **OPTIONS):
            threads.add(threading.get_ident())
            text += piece
        return text

    async def ticks():
        count = 0
        while True:
            await asyncio.sleep(0)
            count += 1
            if all(task.done() for task in tasks):
                return count

    tasks = []

    async def main():
        tasks.extend(asyncio.create_task(read(prompt)) for prompt in PROMPTS[:2])
        count = await ticks()
        return count, [task.result() for task in tasks]

    count, texts = asyncio.run(main())
    assert texts == expected
    assert count > 20
    assert threads == {threading.get_ident()}


def test_an_async_stream_can_be_closed(model):
    async def main():
        stream = model.stream(PROMPTS[0], **OPTIONS)
        first = await anext(stream)
        await stream.aclose()
        return first, [piece async for piece in stream], stream.completion

    first, rest, completion = asyncio.run(main())
    assert rest == []
    assert completion.text.startswith(first)
    assert completion.finish is None


def test_closing_waits_for_the_step_that_is_running(model):
    """From another thread, as a server does when its client is gone."""
    stream = model.stream(PROMPTS[0], max_new_tokens=200)
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


def test_nothing_is_generated_twice(model):
    expected = model.generate(PROMPTS[0], **OPTIONS)
    stream = model.stream(PROMPTS[0], **OPTIONS)
    next(stream)
    for _ in range(2):
        stream.run()
        assert stream.completion.tokens.tolist() == expected.tokens.tolist()
    assert list(stream) == []
    with pytest.raises(UserError, match="already generated"):
        next(stream.steps())
    fresh = model.stream(PROMPTS[0], **OPTIONS)
    fresh.run()
    assert list(fresh) == []
    assert fresh.completion.text == expected.text


def test_public_objects_are_one_short_line(model):
    stream = model.stream(PROMPTS, **OPTIONS)
    next(stream)
    engine = model.engine(EngineConfig(slots=2, max_length=128, tree_nodes=8))
    completion = model.generate(PROMPTS[0], max_new_tokens=60)
    for thing, words in (
        (model, ["DartModel(", "qwen3", "10.2 M", "DART", "n-grams", "float32", "MB"]),
        (model.ngram, ["NgramModel(", "n-grams of up to 3 tokens"]),
        (engine, ["Engine(", "DART", "8 nodes", "2 texts of up to 128 tokens"]),
        (stream, ["TextGeneration(3 texts", "running"]),
        (completion, ["Completion(", "60 tokens", "finish length"]),
    ):
        text = repr(thing)
        assert "\n" not in text
        assert len(text) < 500, text
        for word in words:
            assert word in text, (word, text)


def test_in_a_notebook(model):
    assert model._repr_html_().count("<tr>") == 6
    completion = model.generate("a < b & c = '<br>", max_new_tokens=40, tree_nodes=4)
    page = completion._repr_html_()
    assert "<span" in page
    assert page.count("<span") == sum(piece.drafted for piece in completion.pieces)
    assert "<br>" not in page
    assert "".join(completion.pieces) == completion.text
