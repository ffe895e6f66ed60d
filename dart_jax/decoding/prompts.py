"""The input of a decode loop: a padded batch of prompts, and options that do not recompile."""

from __future__ import annotations

import dataclasses

import numpy as np

from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError

# Tokens of a prompt that are read at a time.
CHUNK = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Prompts:
    """A batch of prompts, padded on the right to limit the number of compiled shapes: to a power of
    two, at least 16, if all fit into one chunk, otherwise to the maximum length.

    Attributes:
      tokens: int32 [B, T].
      length: int32 [B].
      max_new_tokens: int32 [B], reduced to the room that `max_length` leaves.
      max_length: maximum length of prompt and new tokens together, per row.
      chunk: tokens of each prompt that are read at a time.
    """

    tokens: np.ndarray
    length: np.ndarray
    max_new_tokens: np.ndarray
    max_length: int
    chunk: int = CHUNK

    @classmethod
    def pad(
        cls,
        prompts: list[np.ndarray],
        max_new_tokens: int,
        max_length: int,
        vocab_size: int,
        limit: int | None = None,
        chunk: int = CHUNK,
    ) -> Prompts:
        """Pads prompts of different lengths to a batch.

        Args:
          prompts: tokens of each prompt, int [n].
          max_new_tokens: for every row.
          max_length: see the class.
          vocab_size: V.
          limit: a smaller maximum length of prompt and new tokens, which compiles nothing anew.
          chunk: see the class.

        Raises:
          UserError: there is no prompt, a prompt is empty, leaves no room for a new token or has a
            token outside the vocabulary, or `max_new_tokens` or `chunk` is out of range.
        """
        if not prompts:
            raise UserError("no prompts")
        if not 1 <= max_new_tokens < 2**31:
            raise UserError(f"max_new_tokens must be in 1..{2**31 - 1}, got {max_new_tokens}")
        if chunk < 1:
            raise UserError(f"a prompt is read in chunks of at least 1 token, got {chunk}")
        length = np.array([len(prompt) for prompt in prompts], np.int32)
        if length.min() < 1:
            raise UserError("a prompt is empty; give it at least one token")
        room = max_length if limit is None else min(max_length, limit)
        if length.max() >= room:
            raise UserError(
                f"a prompt of {length.max()} tokens leaves no room in {room} positions; shorten it"
            )
        longest = int(length.max())
        padded = max_length
        if longest <= chunk:
            padded = min(max(16, 1 << (longest - 1).bit_length()), max_length)
        tokens = np.zeros((len(prompts), padded), np.int32)
        for row, prompt in zip(tokens, prompts, strict=True):
            if prompt.min() < 0 or prompt.max() >= vocab_size:
                raise UserError(f"prompt tokens must be in 0..{vocab_size - 1}")
            row[: len(prompt)] = prompt
        budget = np.minimum(max_new_tokens, room - length).astype(np.int32)
        return cls(tokens, length, budget, max_length, chunk)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a batch that can change without recompiling.

    Attributes:
      sampling: how the target samples.
      stop: ids that end a sequence.
      seed: seed of sampling, in 0..2**32 - 1.
    """

    sampling: Sampling = Sampling()
    stop: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UserError(f"the seed must be in 0..{2**32 - 1}, got {self.seed}")
