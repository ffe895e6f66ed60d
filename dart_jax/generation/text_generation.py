"""Continues token prompts: runs a decoder and decodes its tokens to text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Sequence

import numpy as np

from dart_jax.decoding.decoder import Decoder
from dart_jax.errors import UserError
from dart_jax.generation.config import GenerationConfig
from dart_jax.generation.generated_text import GeneratedText
from dart_jax.generation.results import Completion, Piece, Step
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
        prompts: Sequence[np.ndarray],
        config: GenerationConfig,
        stop_strings: Sequence[str] = (),
    ):
        """Pads the prompts; nothing is decoded yet.

        Args:
          decoder: runs the model.
          tokenizer: the target's.
          prompts: tokens of each prompt, int [n].
          config: its `max_new_tokens`, `max_length` and `seed` are used.
          stop_strings: the text ends before the first of them that occurs.

        Raises:
          UserError: as `Decoder.pad` and `Decoder.options`.
        """
        self._decoder = decoder
        self._prompts = decoder.pad(list(prompts), config.max_new_tokens, config.max_length)
        self._options = decoder.options(config.seed)
        self._rows = [
            GeneratedText(tokenizer, stop_strings, decoder.stop, row=n) for n in range(len(prompts))
        ]
        # Stop strings can be detected only on the host; the scores of all tokens together could
        # need more memory than the device has.
        per_step = stop_strings or decoder.config.logits.scores
        self._fused = decoder.loop == "fused" and not per_step
        self._steps = np.zeros(len(prompts), int)
        self._seconds: dict[str, float] = {}
        self._pieces = self._generate()
        self._started = False
        # Held during a step, so that `close` can be called from another thread.
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
        """Generates to the end, if possible and faster in one program on the device."""
        with self._running:
            if self._fused and not self._started:
                self._run_fused()
                self._pieces.close()
            else:
                for _ in self._pieces:
                    pass

    def _run_fused(self) -> None:
        self._started = True
        result = self._decoder.generate(self._prompts, self._options)
        scores = result.scores or [None] * len(self._rows)
        for n, row in enumerate(self._rows):
            row.append(result.tokens[n], result.drafted[n], scores[n])
            row.end()
        self._steps, self._seconds = np.array(result.steps), result.seconds

    def _generate(self) -> Generator[Piece, None, None]:
        for step in self.steps():
            yield from step.pieces

    def steps(self, with_drafts: bool = False) -> Generator[Step, None, None]:
        """Generates step by step; an alternative to iterating over the pieces.

        Args:
          with_drafts: also report what each step verified, in `Step.drafts`.

        Raises:
          UserError: these texts are already being generated.
        """
        if self._started:
            raise UserError("these texts were already generated; start another generation")
        self._started = True
        steps = self._decoder.stream(
            self._prompts, self._options, seconds=self._seconds, with_drafts=with_drafts
        )
        ended, first = None, True
        while True:
            try:
                output = steps.send(ended)
            except StopIteration:
                break
            pieces: list[Piece] = []
            scores = output.scores or [None] * len(self._rows)
            for n, (row, tokens) in enumerate(zip(self._rows, output.tokens, strict=True)):
                self._steps[n] += len(tokens) > 0 and not first
                pieces += row.append(tokens, output.ranks[n] > 0, scores[n])
            yield Step(pieces, output.tokens[0], int(output.drafted[0]), output.drafts)
            ended, first = np.array([row.finish is not None for row in self._rows]), False
        rest = [piece for row in self._rows for piece in row.end()]
        if rest:
            yield Step(rest, np.zeros(0, np.int32), 0, None)

    def _completion(self, n: int) -> Completion:
        row = self._rows[n]
        return Completion(
            text="".join(row.pieces),
            tokens=np.array(row.tokens, np.int32),
            drafted=np.array(row.drafted, bool),
            prompt_tokens=int(self._prompts.length[n]),
            steps=int(self._steps[n]),
            finish=row.finish,
            seconds=dict(self._seconds),
            pieces=tuple(row.pieces),
            **row.scores(),
        )
