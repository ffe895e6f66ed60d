"""Prompts and stops as users write them, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    tokenizer: Tokenizer,
    prompt: Prompt,
    template_kwargs: Mapping[str, Any],
    vocab_size: int,
    add_special_tokens: bool = True,
) -> np.ndarray:
    """Returns a prompt's tokens, int64 [n].

    Args:
      tokenizer: the target's.
      prompt: text, token ids or a chat.
      template_kwargs: arguments of the chat template.
      vocab_size: the target's, which may be smaller than the tokenizer's.
      add_special_tokens: whether the tokenizer adds its own around a text.

    Raises:
      UserError: it is not a valid prompt, or has a token that the target does not have.
    """
    if isinstance(prompt, str):
        tokens = np.array(tokenizer.encode(prompt, add_special_tokens), np.int64)
    else:
        tokens = _tokens(tokenizer, prompt, template_kwargs)
    outside = tokenizer.outside(tokens, vocab_size)
    if outside is not None:
        raise UserError(
            f"the prompt has the token id {outside}, which the target lacks; prompt tokens must "
            f"be in 0..{vocab_size - 1}"
        )
    return tokens


def _tokens(tokenizer: Tokenizer, prompt: Any, template_kwargs: Mapping[str, Any]) -> np.ndarray:
    """Returns the tokens of a chat, or the ids given, int64 [n]."""
    if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
        return np.array(tokenizer.encode_chat(prompt, **template_kwargs), np.int64)
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

    Raises:
      UserError: an id is outside the vocabulary.
    """
    ids = tuple(stop for stop in stops if not isinstance(stop, str))
    check_ids("stop", ids, vocab_size, tokenizer)
    return [stop for stop in stops if isinstance(stop, str)], ids


def check_ids(name: str, ids: Iterable[int], vocab_size: int, tokenizer: Tokenizer) -> None:
    """Raises UserError unless the target has embeddings for all ids of an option."""
    outside = tokenizer.outside(ids, vocab_size)
    if outside is not None:
        raise UserError(f"{name} has the token id {outside}; ids are in 0..{vocab_size - 1}")
