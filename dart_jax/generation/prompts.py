"""Prompts and stops as users write them, and their tokens."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from dart_jax.errors import UserError
from dart_jax.generation.config import GenerationConfig
from dart_jax.generation.transformers_options import return_sequences
from dart_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import transformers

# Chat messages with `role` and `content`.
Chat: TypeAlias = Sequence[Mapping[str, object]]

# Text, token ids, or chat messages.
Prompt: TypeAlias = str | Sequence[int] | np.ndarray | Chat

# Several prompts, of any lengths.
Batch: TypeAlias = (
    Sequence[str] | Sequence[Sequence[int]] | Sequence[np.ndarray] | Sequence[Chat] | list[Prompt]
)


def is_batch(prompts: Any) -> bool:
    """Returns True if `prompts` is a batch rather than a single prompt."""
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


class EncodedPrompts(NamedTuple):
    """Prompts and stops as tokens.

    Attributes:
      tokens: of each text to be written, int64 [n].
      continues: whether each of these texts goes on with its prompt, rather than answers a chat.
      stop_strings: strings that end a text.
      stop_ids: ids that end a text.
    """

    tokens: list[np.ndarray]
    continues: list[bool]
    stop_strings: list[str]
    stop_ids: tuple[int, ...]


def encode_prompts(
    tokenizer: Tokenizer,
    prompts: Prompt | Batch,
    config: GenerationConfig,
    sequences: int,
    eos: tuple[int, ...],
    vocab_size: int,
) -> EncodedPrompts:
    """Encodes prompts, each for a number of sequences, and the options that depend on the target's
    vocabulary and the ids that end its texts. Raises UserError if something cannot be used."""
    if isinstance(sequences, bool) or not isinstance(sequences, numbers.Integral):
        raise UserError(f"num_return_sequences must be an integer, got {sequences!r}")
    if sequences < 1:
        raise UserError(f"num_return_sequences must be at least 1, got {sequences}")
    if sequences > 1 and config.sampling.temperature == 0:
        raise UserError(
            "greedy decoding gives the same text every time; set do_sample=True to use "
            "num_return_sequences"
        )
    batch = cast(Sequence[Prompt], prompts if is_batch(prompts) else [prompts])
    stops = cast(tuple[str | int, ...], config.stop)
    strings, ids = split_stops(tokenizer, stops, vocab_size)
    if config.eos_token_id is not None:
        eos = cast(tuple[int, ...], config.eos_token_id)
        check_ids("eos_token_id", eos, vocab_size, tokenizer)
    if (config.logprobs or 0) > vocab_size:
        raise UserError(f"logprobs={config.logprobs}, but there are {vocab_size} tokens")
    encoded = (
        encode_prompt(tokenizer, prompt, config.chat_template_kwargs, vocab_size)
        for prompt in batch
    )
    tokens = [prompt for prompt in encoded for _ in range(sequences)]
    continues = [not _is_chat(prompt) for prompt in batch for _ in range(sequences)]
    return EncodedPrompts(tokens, continues, strings, (*eos, *ids))


def sequences_of(config: GenerationConfig | transformers.GenerationConfig | None) -> int:
    """Returns how many times a config asks each prompt to be continued."""
    return 1 if isinstance(config, GenerationConfig | None) else return_sequences(config)


def encode_prompt(
    tokenizer: Tokenizer,
    prompt: Prompt,
    template_kwargs: Mapping[str, Any],
    vocab_size: int,
    add_special_tokens: bool = True,
) -> np.ndarray:
    """Returns a prompt's tokens, int64 [n]; special tokens are added around a text alone. Raises
    UserError if it is not a valid prompt, or has a token beyond the target's vocabulary."""
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


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _tokens(tokenizer: Tokenizer, prompt: Any, template_kwargs: Mapping[str, Any]) -> np.ndarray:
    """Returns the tokens of a chat, or the ids given, int64 [n]."""
    if _is_chat(prompt):
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
    """Splits stops into stop strings and stop ids; raises UserError if the target lacks one."""
    ids = tuple(stop for stop in stops if not isinstance(stop, str))
    check_ids("stop", ids, vocab_size, tokenizer)
    return [stop for stop in stops if isinstance(stop, str)], ids


def check_ids(name: str, ids: Iterable[int], vocab_size: int, tokenizer: Tokenizer) -> None:
    """Raises UserError unless the target has embeddings for all ids of an option."""
    outside = tokenizer.outside(ids, vocab_size)
    if outside is not None:
        raise UserError(f"{name} has the token id {outside}; ids are in 0..{vocab_size - 1}")
