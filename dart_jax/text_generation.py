"""Continues prompts: encodes text to tokens, runs a decoder, and decodes its tokens to text."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from dart_jax.decoding.decoder import Decoder
from dart_jax.decoding.loop import generate_fused, stream
from dart_jax.errors import UserError
from dart_jax.generation import Completion, GenerationConfig, Piece, Step
from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer

# Text, token ids, or chat messages.
Prompt = str | Sequence[int] | np.ndarray | Sequence[Mapping[str, Any]]


def is_batch(prompts: Any) -> bool:
    """Whether `prompts` is a batch rather than a single prompt."""
    if isinstance(prompts, str):
        return False
    if isinstance(prompts, np.ndarray):
        return prompts.ndim > 1
    if isinstance(prompts, Mapping) or not isinstance(prompts, Sequence):
        raise UserError(
            "a prompt is a text, token ids or a list of messages with role and content, not "
            f"a {type(prompts).__name__}"
        )
    return len(prompts) == 0 or not isinstance(prompts[0], int | np.integer | Mapping)


class TextGeneration:
    """A batch of prompts being continued.

    Iterating runs the decoder step by step and yields the pieces of the first prompt's text;
    `steps` yields one `Step` per decode step; `run` generates everything at once.
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
          config: its `max_new_tokens` and `seed` are used.
          stop_strings: the text ends before the first of them that occurs.

        Raises:
          UserError: as `Decoder.pad` and `Decoder.options`.
        """
        self._decoder = decoder
        self._prompts = decoder.pad(list(prompts), config.max_new_tokens)
        self._options = decoder.options(config.seed)
        self._rows = [_Row(tokenizer, stop_strings, decoder.stop) for _ in prompts]
        self._fused = not stop_strings
        self._steps = np.zeros(len(prompts), int)
        self._seconds: dict[str, float] = {}
        self._pieces = self._generate()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Stops generating; the completion so far stays available."""
        self._pieces.close()

    @property
    def programs(self) -> Hashable:
        """A key that is equal for generations that run the same compiled programs."""
        sampling = jax.tree.structure(self._options.sampling.values())
        stop = len(self._options.stop)
        prompts = self._prompts
        return self._decoder.config, prompts.tokens.shape, prompts.max_length, sampling, stop

    @property
    def completion(self) -> Completion:
        """The first prompt's continuation so far."""
        return self._completion(0)

    @property
    def completions(self) -> list[Completion]:
        """The continuations of all prompts so far."""
        return [self._completion(row) for row in range(len(self._rows))]

    def run(self) -> None:
        """Generates to the end, in one program on the device unless there are stop strings, which
        only the host can detect."""
        if not self._fused:
            for _ in self._pieces:
                pass
            return
        decoder = self._decoder
        result = generate_fused(
            decoder.config, decoder.params, decoder.pruner, self._prompts, self._options
        )
        for row, tokens, drafted in zip(self._rows, result.tokens, result.drafted, strict=True):
            row.append(tokens, drafted)
            row.end()
        self._steps, self._seconds = result.steps, result.seconds

    def _generate(self) -> Generator[Piece, None, None]:
        for step in self.steps():
            yield from step.pieces

    def steps(self, with_drafts: bool = False) -> Generator[Step, None, None]:
        """Generates step by step; an alternative to iterating over the pieces.

        Args:
          with_drafts: also report what each step verified, in `Step.drafts`.
        """
        decoder, ended = self._decoder, None
        steps = stream(
            decoder.config,
            decoder.params,
            decoder.pruner,
            self._prompts,
            self._options,
            seconds=self._seconds,
            with_drafts=with_drafts,
        )
        first = True
        while True:
            try:
                output = steps.send(ended)
            except StopIteration:
                break
            pieces: list[list[Piece]] = []
            for n, (row, tokens) in enumerate(zip(self._rows, output.tokens, strict=True)):
                self._steps[n] += len(tokens) > 0 and not first
                pieces.append(row.append(tokens, np.arange(len(tokens)) < output.drafted[n]))
            yield Step(pieces[0], output.tokens[0], int(output.drafted[0]), output.drafts)
            ended, first = np.array([row.finish is not None for row in self._rows]), False
        rest = [row.end() for row in self._rows]
        if rest[0]:
            yield Step(rest[0], np.zeros(0, np.int32), 0, None)

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
        )


class _Row:
    """One sequence: its tokens, its text, and how it finished."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], stop_ids: Sequence[int]):
        self.tokens: list[int] = []
        self.drafted: list[bool] = []
        self.pieces: list[Piece] = []
        self.finish: Literal["stop", "length"] | None = None
        self._text = TextStream(tokenizer, stop)
        self._stop_ids = frozenset(stop_ids)

    def append(self, tokens: np.ndarray, drafted: np.ndarray) -> list[Piece]:
        """Appends tokens, up to one that ends the text; returns the new pieces."""
        before = len(self.pieces)
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

    def _add(self, text: str) -> None:
        if text:
            self.pieces.append(Piece(text, self.drafted[-1]))


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, config: GenerationConfig) -> np.ndarray:
    """Returns a prompt's tokens, int64 [n]; raises UserError if it is not a valid prompt."""
    if isinstance(prompt, str):
        return np.array(tokenizer.encode(prompt), np.int64)
    if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
        chat: Any = prompt
        return np.array(tokenizer.encode_chat(chat, **config.chat_template_kwargs), np.int64)
    tokens = np.asarray(prompt)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise UserError(
            "a prompt is a text, a list of token ids or a list of messages with role and content"
        )
    return tokens.astype(np.int64)


def split_stops(
    tokenizer: Tokenizer, stops: Sequence[str | int]
) -> tuple[list[str], tuple[int, ...]]:
    """Splits stops into stop strings and stop ids.

    The name of a special token, which never appears in decoded text, becomes its id.
    """
    special = {tokenizer.backend.id_to_token(id): id for id in tokenizer.special_ids}
    strings = [stop for stop in stops if isinstance(stop, str) and stop not in special]
    rest = (stop for stop in stops if stop not in strings)
    return strings, tuple(special[stop] if isinstance(stop, str) else stop for stop in rest)
