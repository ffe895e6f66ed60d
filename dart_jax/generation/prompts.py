"""Prompts and stops as users write them, and their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer

# Chat messages with `role` and `content`.
Chat: TypeAlias = Sequence[Mapping[str, object]]

# Text, token ids, or chat messages.
Prompt: TypeAlias = str | Sequence[int] | np.ndarray | Chat

# Several prompts, of any lengths.
Batch: TypeAlias = (
    Sequence[str] | Sequence[Sequence[int]] | Sequence[np.ndarray] | Sequence[Chat] | list[Prompt]
)


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


def encode_prompt(
    tokenizer: Tokenizer, prompt: Prompt, template_kwargs: Mapping[str, Any]
) -> np.ndarray:
    """Returns a prompt's tokens, int64 [n].

    Args:
      tokenizer: the target's.
      prompt: text, token ids or a chat.
      template_kwargs: arguments of the chat template.

    Raises:
      UserError: it is not a valid prompt.
    """
    if isinstance(prompt, str):
        return np.array(tokenizer.encode(prompt), np.int64)
    if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
        chat: Any = prompt
        return np.array(tokenizer.encode_chat(chat, **template_kwargs), np.int64)
    try:
        tokens = np.asarray(prompt)
    except (ValueError, OverflowError):  # ragged, or too large
        tokens = np.zeros(1, object)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise UserError(
            "a prompt is a text, a list of token ids or a list of messages with role and content"
        )
    return tokens.astype(np.int64)


def split_stops(
    tokenizer: Tokenizer, stops: Sequence[str | int], vocab_size: int
) -> tuple[list[str], tuple[int, ...]]:
    """Splits stops into stop strings and stop ids.

    The name of a special token, which never appears in decoded text, becomes its id.

    Raises:
      UserError: an id is outside the vocabulary.
    """
    check_ids("stop", [stop for stop in stops if not isinstance(stop, str)], vocab_size)
    special = {tokenizer.backend.id_to_token(id): id for id in tokenizer.special_ids}
    strings = [stop for stop in stops if isinstance(stop, str) and stop not in special]
    rest = (stop for stop in stops if stop not in strings)
    return strings, tuple(special[stop] if isinstance(stop, str) else stop for stop in rest)


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raises UserError unless all ids of an option are in the vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise UserError(f"{name} has the token id {token}; ids are in 0..{vocab_size - 1}")
