"""Continues prompts: steps an engine until all are done, and decodes its tokens to text."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Generator, Sequence

import numpy as np

from dart_jax.engine.engine import Engine
from dart_jax.engine.request import Output, Request
from dart_jax.engine.shapes import CHECKED_STEPS
from dart_jax.errors import UserError
from dart_jax.generation.prompts import EncodedPrompts
from dart_jax.generation.results import Completion, GeneratedText, Piece, Step
from dart_jax.text.tokenizer import Tokenizer


class TextGeneration:
    """A batch of prompts being continued.

    Iterating, with `for` or `async for`, decodes step by step and yields the pieces of all
    texts; `Piece.row` tells them apart. `steps` yields one `Step` per decode step; `run` generates
    everything at once.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        prompts: EncodedPrompts,
        requests: Sequence[Request],
    ):
        """Checks the requests, one for each prompt, for an engine that decodes nothing else; raises
        UserError if one does not fit. Nothing is decoded yet."""
        self._engine = engine
        self._sequences = [engine.sequence_of(request) for request in requests]
        stops = prompts.stop_strings
        self._texts = []
        for row, each in enumerate(self._sequences):
            # A text is what its structure demands, up to the first space.
            goes_on = prompts.continues[row] or each.request.grammar is not None
            ids = each.request.stop_ids
            text = GeneratedText(tokenizer, stops, ids, row=row, continues=goes_on)
            self._texts.append(text)
        # Stop strings are found only on the host.
        self._steps_at_once = CHECKED_STEPS if stops else None
        self._pieces = self._generate()
        self._started = False
        # Held during a burst, so that `close` can be called from another thread.
        self._running = threading.Lock()

    def __iter__(self) -> TextGeneration:
        return self

    def __next__(self) -> Piece:
        with self._running:
            return next(self._pieces)

    def __aiter__(self) -> TextGeneration:
        return self

    async def __anext__(self) -> Piece:
        """Runs a step in a thread, so that the event loop can do other work."""
        piece = await asyncio.to_thread(next, self, None)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __repr__(self) -> str:
        done = [completion.finish for completion in self.completions]
        tokens = sum(len(text.tokens) for text in self._texts)
        running = sum(finish is None for finish in done)
        return f"TextGeneration({len(done)} texts, {running} running, {tokens} new tokens)"

    def close(self) -> None:
        """Stops generating; the completion so far stays available."""
        with self._running:
            self._pieces.close()

    async def aclose(self) -> None:
        """Does the same without blocking the event loop during a step that is running."""
        await asyncio.to_thread(self.close)

    @property
    def completion(self) -> Completion:
        """The first prompt's continuation so far."""
        return self._completion(0)

    @property
    def completions(self) -> list[Completion]:
        """The continuations of all prompts so far."""
        return [self._completion(row) for row in range(len(self._texts))]

    def run(self) -> None:
        """Generates to the end, in as few bursts as possible."""
        with self._running:
            rest = self._pieces
            if not self._started:
                rest.close()
                rest = self._steps(self._steps_at_once)
            for _ in rest:
                pass

    def _generate(self) -> Generator[Piece, None, None]:
        for step in self.steps():
            yield from step.pieces

    def steps(self, with_drafts: bool = False) -> Generator[Step, None, None]:
        """Generates step by step; an alternative to iterating over the pieces. With drafts, each
        `Step.draft` reports what was verified. Raises UserError if these texts are already being
        generated."""
        if self._started:
            raise UserError("these texts were already generated; start another generation")
        for sequence in self._sequences:
            sequence.request = dataclasses.replace(sequence.request, drafts=with_drafts)
        yield from self._steps(1)

    def _steps(self, limit: int | None) -> Generator[Step, None, None]:
        """Generates in bursts of at most `limit` steps."""
        self._started, engine = True, self._engine
        rows = {engine.add(sequence): row for row, sequence in enumerate(self._sequences)}
        while engine.busy:
            pieces: list[Piece] = []
            first = Output.without_tokens()
            outputs = engine.step(limit)
            for error in (each.error for _, each in outputs if each.error is not None):
                raise error
            for sequence, output in outputs:
                row = rows[sequence]
                text = self._texts[row]
                pieces += text.append(output.tokens, output.drafted, output.scores)
                if text.finish is not None:
                    engine.cancel(sequence)
                if row == 0:
                    first = output
            yield Step(pieces, first.tokens, int(first.drafted.sum()), first.draft)
        rest = [piece for text in self._texts for piece in text.end()]
        if rest:
            yield Step(rest, np.zeros(0, np.int32), 0, None)

    def _completion(self, n: int) -> Completion:
        text = self._texts[n]
        return Completion(
            text="".join(text.pieces),
            tokens=np.array(text.tokens, np.int32),
            drafted=np.array(text.drafted, bool),
            prompt_tokens=self._sequences[n].prompt_length,
            finish=text.finish,
            seconds=dict(self._engine.seconds),
            pieces=tuple(text.pieces),
            **text.scores(),
        )
