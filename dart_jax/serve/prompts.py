"""Prompts as clients write them, and their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.serve.errors import bad
from dart_jax.text.tokenizer import Tokenizer

# Arguments of `apply_chat_template` that are not the template's.
_NOT_THE_TEMPLATES = frozenset(
    {
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "truncation",
    }
)

# Longer texts are encoded on another thread, during which others are answered.
_LONG = 10_000


async def encode_text(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """A text's tokens; raises UserError if it is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the prompt holds half of a surrogate pair at character {error.start}; replace it"
        ) from None

    def encode() -> list[int]:
        # Unlike `encode`, this lets other threads run.
        [made] = tokenizer.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return made.ids

    return encode() if len(text) < _LONG else await asyncio.to_thread(encode)


async def encode_prompt(
    tokenizer: Tokenizer, prompt: str | Sequence[int], vocab_size: int, add_special_tokens: bool
) -> np.ndarray:
    """The tokens of a text, or those given, int32 [n].

    Raises:
      ApiError: the target does not have an id.
      UserError: the text is not valid Unicode.
    """
    ids = prompt
    if isinstance(prompt, str):
        ids = await encode_text(tokenizer, prompt, add_special_tokens)
    check_ids(tokenizer, ids, vocab_size, "prompt")
    return np.array(ids, np.int32)


def check_ids(tokenizer: Tokenizer, ids: Iterable[Any], vocab_size: int, param: str) -> None:
    """Raises ApiError unless the target has all ids."""
    outside = tokenizer.outside(ids, vocab_size)
    if outside is not None:
        raise bad(
            f"{param} has token ids outside of 0..{vocab_size - 1}, the first is {outside}", param
        )


async def encode_messages(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    vocab_size: int,
    template_kwargs: Mapping[str, Any],
    add_generation_prompt: bool = True,
) -> np.ndarray:
    """The tokens of a chat, up to where the answer begins, int32 [n].

    Raises:
      ApiError: there is no chat template, it refuses the messages, their contents are not text, or
        the target does not have one of their tokens.
      UserError: they are not messages.
    """
    if not tokenizer.chat_template:
        raise bad(
            "this model has no chat template; use /v1/completions", "messages", "no_chat_template"
        )
    template = tokenizer.chat_template
    names = list(template) if isinstance(template, dict) else []
    for name, value in template_kwargs.items():
        if name in _NOT_THE_TEMPLATES and not (name == "chat_template" and value in names):
            raise bad(f"chat_template_kwargs must not have {name}", "chat_template_kwargs")
    chat = [_only_text(message, place) for place, message in enumerate(messages)]
    options = {"add_generation_prompt": add_generation_prompt} | dict(template_kwargs)
    try:
        text = tokenizer.render_chat(chat, **options)
    except UserError as error:
        if error.__cause__ is None:
            raise
        # The message names a directory, which is not the client's business.
        reason = str(error.__cause__).strip().split("\n", 1)[0]
        raise bad(f"the chat template refuses the messages: {reason}", "messages") from None
    added = tokenizer.adds_to_chat(text)
    ids = await encode_text(tokenizer, text, add_special_tokens=added)
    check_ids(tokenizer, ids, vocab_size, "messages")
    return np.array(ids, np.int32)


def _only_text(message: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    """A message whose content is one text instead of several parts."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise bad(
                f"messages.{place}.content has a part of type {kind!r}; only text is supported",
                "messages",
                "unsupported_parameter",
            )
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}
