"""Requests to an engine, and the texts that come of them."""

import threading

import numpy as np

from dart_jax.engine.request import Request
from dart_jax.engine.thread import EngineThread

PATIENCE = 120  # seconds


class Answer:
    """Collects the outputs of one request."""

    def __init__(self) -> None:
        self.outputs: list = []
        self.error: BaseException | None = None
        self.started, self.ended = threading.Event(), threading.Event()

    def __call__(self, output) -> None:
        self.error = output.error
        if self.error is None:
            self.outputs.append(output)
            self.started.set()
        if output.last:
            self.ended.set()

    def wait(self) -> "Answer":
        assert self.ended.wait(PATIENCE), "no answer"
        if self.error is not None:
            raise self.error
        return self

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.tokens.tolist()]

    @property
    def drafted(self) -> list[bool]:
        return [drafted for output in self.outputs for drafted in output.drafted.tolist()]

    @property
    def finish(self) -> str:
        return self.outputs[-1].finish


def ask(engine: EngineThread, *requests: Request) -> list[Answer]:
    """Submits requests together and waits for their ends."""
    answers = [Answer() for _ in requests]
    for request, answer in zip(requests, answers, strict=True):
        engine.submit(request, answer)
    return [answer.wait() for answer in answers]


def tokens_of(model, text: str) -> np.ndarray:
    """The tokens of a prompt, int32 [n]."""
    return np.array(model.tokenizer.encode(text), np.int32)
