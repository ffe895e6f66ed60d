"""Continues token prompts: runs a decoder and decodes its tokens to text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import numpy as np

from dart_jax.engine.decoder import CHECKED_STEPS, BatchDecoding, Decoder
from dart_jax.errors import UserError
from dart_jax.generation.config import GenerationConfig
from dart_jax.generation.prompts import EncodedPrompts
from dart_jax.generation.results import Completion, GeneratedText, Piece, Step
from dart_jax.text.tokenizer import Tokenizer


class TextGeneration:
    """A batch of prompts being continued.

    Iterating, with `for` or `async for`, runs the decoder step by step and yields the pieces of all
    texts; `Piece.row` tells them apart. `steps` yields one `Step` per decode step; `run` generates
    everything at once.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        prompts: EncodedPrompts,
        config: GenerationConfig,
    ):
        """Queues the prompts; nothing is decoded yet.

        Args:
          decoder: runs the model.
          tokenizer: the target's.
          prompts: the prompts.
          config: its `max_new_tokens`, `max_length` and `seed` are used, and whether it has a
            structure.

        Raises:
          UserError: as `Decoder.start`.
        """

        def begin(drafts: bool) -> BatchDecoding:
            count, limit = config.max_new_tokens, config.max_length
            return decoder.start(prompts.tokens, count, config.seed, limit=limit, drafts=drafts)

        self._begin, self._batch = begin, begin(False)
        # A text is what its structure demands, up to the first space.
        whole, stops = config.structured_outputs is not None, prompts.stop_strings
        self._rows = [
            GeneratedText(tokenizer, stops, decoder.stop, row=n, continues=continues or whole)
            for n, continues in enumerate(prompts.continues)
        ]
        # Stop strings are found only on the host.
        self._steps_at_once = CHECKED_STEPS if stops else decoder.steps
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
        tokens = sum(len(row.tokens) for row in self._rows)
        running = sum(finish is None for finish in done)
        return f"TextGeneration({len(done)} texts, {running} running, {tokens} new tokens)"

    def close(self) -> None:
        """Stops generating; the completion so far stays available."""
        with self._running:
            self._pieces.close()

    async def aclose(self) -> None:
        """The same without blocking the event loop during a step that is running."""
        await asyncio.to_thread(self.close)

    @property
    def completion(self) -> Completion:
        """The first prompt's continuation so far."""
        return self._completion(0)

    @property
    def completions(self) -> list[Completion]:
        """The continuations of all prompts so far."""
        return [self._completion(row) for row in range(len(self._rows))]

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
        """Generates step by step; an alternative to iterating over the pieces.

        Args:
          with_drafts: also report what each step verified, in `Step.draft`.

        Raises:
          UserError: these texts are already being generated.
        """
        if self._started:
            raise UserError("these texts were already generated; start another generation")
        if with_drafts:
            self._batch = self._begin(True)
        yield from self._steps(1)

    def _steps(self, limit: int) -> Generator[Step, None, None]:
        """Generates in bursts of so many steps, at most."""
        self._started, batch = True, self._batch
        while batch.busy:
            new = batch.burst(limit)
            pieces: list[Piece] = []
            for row, tokens, ranks, scores, _ in new:
                text = self._rows[row]
                pieces += text.append(tokens, ranks > 0, scores)
                if text.finish is not None:
                    batch.end(row)
            first = next((each for each in new if each.row == 0), None)
            if first is None:
                yield Step(pieces, np.zeros(0, np.int32), 0, None)
            else:
                yield Step(pieces, first.tokens, int(np.sum(first.ranks > 0)), first.draft)
        rest = [piece for text in self._rows for piece in text.end()]
        if rest:
            yield Step(rest, np.zeros(0, np.int32), 0, None)

    def _completion(self, n: int) -> Completion:
        row = self._rows[n]
        return Completion(
            text="".join(row.pieces),
            tokens=np.array(row.tokens, np.int32),
            drafted=np.array(row.drafted, bool),
            prompt_tokens=self._batch.length(n),
            finish=row.finish,
            seconds=dict(self._batch.seconds),
            pieces=tuple(row.pieces),
            **row.scores(),
        )
