"""Tokens of prompts and chats, as clients write them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from dart_jax.errors import UserError
from dart_jax.generation.prompts import Prompt, encode_prompt
from dart_jax.serve.body.errors import bad
from dart_jax.serve.body.fields import ChatFields, TokenizeFields
from dart_jax.serve.tools.history import with_tools
from dart_jax.serve.tools.request import Tools
from dart_jax.text.stream import TextStream
from dart_jax.text.tokenizer import Tokenizer

# Arguments of `apply_chat_template` that are not the template's.
_NOT_THE_TEMPLATES = {
    "chat_template", "continue_final_message", "conversation", "max_length", "padding",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize",
    "tokenizer_kwargs", "tools", "truncation",
}  # fmt: skip


async def encode(
    tokenizer: Tokenizer, prompt: Prompt, vocab_size: int, add_special_tokens: bool = True
) -> np.ndarray:
    """Returns the tokens of a text, or those given, int32 [n].

    Raises:
      ApiError: as the UserError of `encode_prompt`.
    """
    options = tokenizer, prompt, {}, vocab_size, add_special_tokens
    return await _in_thread("prompt", encode_prompt, *options)


class Echo(NamedTuple):
    """A prompt that is repeated before the texts that continue it.

    Attributes:
      text: its characters.
      offsets: characters before each of its tokens.
    """

    text: str
    offsets: list[int]


async def echo_of(
    tokenizer: Tokenizer, prompt: Prompt, tokens: np.ndarray, add_special_tokens: bool
) -> Echo:
    """Returns the echo of a text, or of token ids: then without special tokens, as texts have
    none. `tokens`: as `encode` returned them for the same prompt."""
    return await asyncio.to_thread(_echo, tokenizer, prompt, tokens.tolist(), add_special_tokens)


def _echo(
    tokenizer: Tokenizer, prompt: Prompt, tokens: list[int], add_special_tokens: bool
) -> Echo:
    if isinstance(prompt, str):
        options = {"add_special_tokens": add_special_tokens}
        [encoding] = tokenizer.backend.encode_batch([prompt], **options)
        # What is added has no place in the text, and says 0 even at its end.
        offsets = list(accumulate((begin for begin, _ in encoding.offsets), max))
        return Echo(prompt, offsets)
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokens]
    offsets = list(accumulate(map(len, pieces[:-1]), initial=0))
    return Echo("".join(pieces) + stream.finish(), offsets)


def check_chat(tokenizer: Tokenizer, fields: ChatFields | TokenizeFields) -> None:
    """Raises ApiError if there is no chat template, or it has not these options."""
    template = tokenizer.chat_template
    if not template:
        message = "this model has no chat template; use /v1/completions"
        raise bad(message, "messages", "no_chat_template")
    names = list(template) if isinstance(template, dict) else []
    for name, value in fields.chat_template_kwargs.items():
        if name in _NOT_THE_TEMPLATES and not (name == "chat_template" and value in names):
            raise bad(f"chat_template_kwargs must not have {name}", "chat_template_kwargs")


async def encode_chat(
    tokenizer: Tokenizer,
    fields: ChatFields | TokenizeFields,
    vocab_size: int,
    tools: Tools | None = None,
) -> np.ndarray:
    """Returns the tokens of messages that `check_chat` allows, up to where the answer begins,
    int32 [n]; `tools` are those that it may call.

    Raises:
      ApiError: the chat template refuses the messages, or the target lacks one of their tokens.
    """
    options: dict[str, Any] = {"add_generation_prompt": fields.add_generation_prompt}
    if isinstance(fields, ChatFields) and fields.continue_final_message:
        options["continue_final_message"] = True
    options |= fields.template_options
    chat = fields.messages or ()
    return await _in_thread("messages", _chat_tokens, tokenizer, chat, options, vocab_size, tools)


def _chat_tokens(
    tokenizer: Tokenizer,
    chat: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    vocab_size: int,
    tools: Tools | None,
) -> np.ndarray:
    """Returns the tokens of messages, written in the first way that the template takes."""
    refusal: UserError | None = None
    for messages, described in with_tools(tokenizer, chat, options, tools):
        try:
            return encode_prompt(tokenizer, messages, {**options, "tools": described}, vocab_size)
        except UserError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


async def _in_thread(param: str, encoding: Callable[..., np.ndarray], *args: Any) -> np.ndarray:
    """Returns tokens that are found on another thread, so that others are answered meanwhile."""
    try:
        return (await asyncio.to_thread(encoding, *args)).astype(np.int32)
    except UserError as error:
        raise bad(str(error), param) from None
