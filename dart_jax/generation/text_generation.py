"""Continues token prompts: runs a decoder and decodes its tokens to text."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Generator, Hashable, Sequence
from typing import Literal

import jax
import numpy as np

from dart_jax.decoding.decoder import Decoder
from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.loop import padded_stop
from dart_jax.decoding.prefill import divide
from dart_jax.errors import UserError
from dart_jax.generation.config import GenerationConfig
from dart_jax.generation.results import Completion, Piece, Step
from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer

# The prefill, the step after it, and one whose arguments all come from a step.
_ALL_PROGRAMS = 3


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
        self._rows = [_Row(n, tokenizer, stop_strings, decoder.stop) for n in range(len(prompts))]
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
    def programs(self) -> Hashable:
        """A key that is equal for generations that run the same compiled programs."""
        sampling = jax.tree.structure(self._options.sampling.values())
        stop = len(padded_stop(self._options.stop))
        prompts = self._prompts
        config = self._decoder.config
        chunks = frozenset(chunk.shape for chunk in divide(config, prompts))
        sizes = self._decoder.sizes
        return config, sizes, prompts.tokens.shape, chunks, prompts.max_length, sampling, stop

    def prepare(self) -> Generator[None, None, bool]:
        """Compiles what `steps` and iterating run, by decoding the same texts for some steps.

        If the sizes of trees may change, all of them are run until what they cost is known. Yields
        between steps.

        Returns:
          Whether everything is compiled: with trees of one size, a text may end before.
        """
        decoder, prompts, options = self._decoder, self._prompts, self._options
        if decoder.sizes:
            yield from decoder.visit_sizes(prompts, options, "host")
            return True
        steps = decoder.stream(prompts, options)
        taken = 0
        for _ in itertools.islice(steps, _ALL_PROGRAMS):
            taken += 1
            yield
        steps.close()
        return taken == _ALL_PROGRAMS

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


class _Row:
    """One sequence: its tokens, its text, and how it finished."""

    def __init__(
        self, index: int, tokenizer: Tokenizer, stop: Sequence[str], stop_ids: Sequence[int]
    ):
        self.tokens: list[int] = []
        self.drafted: list[bool] = []
        self.pieces: list[Piece] = []
        self.finish: Literal["stop", "length"] | None = None
        self._index = index
        self._text = TextStream(tokenizer, stop)
        self._stop_ids = frozenset(stop_ids)
        self._scores: list[TokenScores] = []

    def append(
        self, tokens: np.ndarray, drafted: np.ndarray, scores: TokenScores | None
    ) -> list[Piece]:
        """Appends tokens, up to one that ends the text; returns the new pieces."""
        before = len(self.pieces)
        if scores is not None:
            self._scores.append(scores)
        for token, was_drafted in zip(tokens.tolist(), drafted.tolist(), strict=True):
            if self.finish is not None:
                break
            self.tokens.append(token)
            self.drafted.append(was_drafted)
            if token in self._stop_ids:
                self._add(self._text.finish())
                self.finish = "stop"
                break
            self._add(self._text.push(token))
            if self._text.stopped:
                self.finish = "stop"
        return self.pieces[before:]

    def end(self) -> list[Piece]:
        """Ends the sequence: no more tokens follow. Returns the last pieces."""
        before = len(self.pieces)
        if self.finish is None:
            self._add(self._text.finish())
            self.finish = "stop" if self._text.stopped else "length"
        return self.pieces[before:]

    def scores(self) -> dict[str, np.ndarray]:
        """What is reported about the tokens, by field of `Completion`; empty if nothing is."""
        if not self._scores:
            return {}
        count = len(self.tokens)
        joined = jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *self._scores)
        return {name: value for name, value in joined._asdict().items() if value is not None}

    def _add(self, text: str) -> None:
        if text:
            self.pieces.append(Piece(text, self.drafted[-1], self._index))
