"""Requests to an engine, and the texts that come of them."""

import threading

import numpy as np

from dart_jax.engine.request import Output, Request
from dart_jax.engine.thread import EngineThread


class Answer:
    """Collects the outputs of one request."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.started, self.ended = threading.Event(), threading.Event()

    def __call__(self, output) -> None:
        self.outputs.append(output)
        self.started.set()
        if output.last:
            self.ended.set()

    def wait(self) -> Output:
        """All that came until the end; raises the error that ended it."""
        assert self.ended.wait(120), "no answer"
        if error := self.outputs[-1].error:
            raise error
        return Output.joined(self.outputs)


def ask(engine: EngineThread, *requests: Request) -> list[Output]:
    """Submits requests together and waits for their ends."""
    answers = [Answer() for _ in requests]
    for request, answer in zip(requests, answers, strict=True):
        engine.submit(request, answer)
    return [answer.wait() for answer in answers]


def lists(outputs: list[Output]) -> list[list[int]]:
    """The new tokens of every request."""
    return [output.tokens.tolist() for output in outputs]


def tokens_of(model, text: str) -> np.ndarray:
    """The tokens of a prompt, int32 [n]."""
    return np.array(model.tokenizer.encode(text), np.int32)
