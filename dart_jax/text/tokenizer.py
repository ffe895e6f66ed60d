"""The target's tokenizer: encodes text and chats, decodes ids."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from dart_jax.errors import UserError
from dart_jax.text.fingerprint import vocabulary_size

FILE = "tokenizer.json"

# Files that transformers can build a tokenizer from; without any of them it may build an empty one.
_VOCABULARIES = ("*.model", "vocab*", "*.tiktoken", "tekken.json")


class Tokenizer:
    """Encodes and decodes exactly as its `tokenizer.json` says.

    transformers, which may rebuild that file differently, is imported only for chat templates and
    for directories without the file.

    Attributes:
      backend: the tokenizer, without padding and truncation.
      directory: holds the other files, such as the chat template; None if there is none.
    """

    def __init__(self, backend: tokenizers.Tokenizer, directory: Path | None = None):
        """Wraps a tokenizer and switches off its padding and truncation."""
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.directory = directory

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Reads a target's directory, or only a `tokenizer.json`, without a chat template.

        Raises:
          UserError: there is no tokenizer, or it is damaged.
        """
        path = Path(path)
        if path.is_file():
            return cls(_read(path))
        if not path.is_dir():
            raise UserError(f"no directory {path}; pass one with a {FILE}")
        if (path / FILE).is_file():
            return cls(_read(path / FILE), path)
        if not any(file for pattern in _VOCABULARIES for file in path.glob(pattern)):
            raise UserError(f"no file {path / FILE}; a target needs its tokenizer")
        wrapped = _wrap(path)
        tokenizer = cls(wrapped.backend_tokenizer, path)
        tokenizer.__dict__["wrapped"] = wrapped  # so that it is not read again
        return tokenizer

    @cached_property
    def wrapped(self) -> Any:
        """The directory's `transformers.PreTrainedTokenizerBase`, with its chat template; None
        without a directory.

        Raises:
          UserError: a file next to `tokenizer.json` is damaged.
        """
        return None if self.directory is None else _wrap(self.directory)

    def __repr__(self) -> str:
        where = "" if self.directory is None else f", {self.directory}"
        return f"Tokenizer({self.vocab_size} tokens{where})"

    @cached_property
    def vocab_size(self) -> int:
        """The highest id + 1."""
        return vocabulary_size(self.backend)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that `decode` skips."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    def get_vocab(self) -> dict[str, int]:
        """Returns every token and its id, added tokens included."""
        return self.backend.get_vocab()

    def encode(self, text: str) -> list[int]:
        """Encodes a text, with the special tokens that the tokenizer adds around it.

        Raises:
          UserError: the text is not valid Unicode.
        """
        return self._encode(text, add_special_tokens=True)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any
    ) -> list[int]:
        """Encodes a chat with the target's template, up to where the assistant's answer begins.

        Args:
          messages: each with a `role` and a `content`.
          template_kwargs: options of the template, such as `enable_thinking=False` or `tools`.

        Raises:
          UserError: there is no template, it rejects the messages, or they are not messages.
        """
        # The template already contains the special tokens.
        return self._encode(self.render_chat(messages, **template_kwargs), add_special_tokens=False)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> str:
        """The text that `encode_chat` encodes, without adding special tokens; raises the same."""
        _check_messages(messages)
        if not self.chat_template:
            where = self.directory or f"a {FILE} by itself"
            raise UserError(
                f"no chat template in {where}; pass plain text, or put a chat_template.jinja there"
            )
        options = {"add_generation_prompt": True} | template_kwargs | {"tokenize": False}
        try:
            return str(self.wrapped.apply_chat_template(list(map(dict, messages)), **options))
        except Exception as error:  # a template may raise anything
            raise UserError(
                f"the chat template of {self.directory} refuses the messages: {_line(error)}"
            ) from error

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The template's source, or several by name; None if there is none."""
        return None if self.wrapped is None else self.wrapped.chat_template

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Decodes ids. Bytes that are not UTF-8 become U+FFFD; ids without a token are skipped.

        Spaces are kept, whatever `clean_up_tokenization_spaces` says: for BPE, transformers ignores
        it as well.
        """
        return self.backend.decode(list(map(int, ids)), skip_special_tokens=skip_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text holds half of a surrogate pair at character {error.start}; replace it"
            ) from None
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids


def _check_messages(messages: Any) -> None:
    shape = 'a chat is a list of messages like {"role": "user", "content": "..."}'
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise UserError(f"{shape}, not {_kind(messages)}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UserError(f"{shape}; message {number} is {_kind(message)}")
        if not isinstance(message.get("role"), str):
            raise UserError(f"{shape}; message {number} has no role")
        content = message.get("content")
        if not isinstance(content, str | list) and "tool_calls" not in message:
            raise UserError(f"{shape}; message {number} has no text as its content")


def _kind(value: Any) -> str:
    return "empty" if isinstance(value, list) and not value else f"a {type(value).__name__}"


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise UserError(
            f"cannot read {path}: {_line(error)}; it is damaged or incomplete"
        ) from None


def _transformers() -> Any:
    """Imports transformers, without its advice to install PyTorch, which nothing here needs."""
    logger = logging.getLogger("transformers")

    def other(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in str(record.msg)

    logger.addFilter(other)
    try:
        return importlib.import_module("transformers")
    finally:
        logger.removeFilter(other)


def _wrap(directory: Path) -> Any:
    """Loads the tokenizer of transformers; without `FILE`, it is built from a vocabulary."""
    transformers = _transformers()
    whole = (directory / FILE).is_file()
    kind: Any = transformers.PreTrainedTokenizerFast if whole else transformers.AutoTokenizer
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        # Otherwise transformers would ask at the terminal whether to run the tokenizer's own code.
        options = {} if whole else {"trust_remote_code": False}
        wrapped = kind.from_pretrained(str(directory), local_files_only=True, **options)
    except Exception as error:  # the library raises no narrower class
        reason = _line(error).rstrip(": ")
        if whole:
            raise UserError(f"cannot read the files next to {directory / FILE}: {reason}") from None
        raise UserError(
            f"no file {directory / FILE}, and none can be built from its other files ({reason}); "
            "pass a directory with one"
        ) from None
    finally:
        transformers.logging.set_verbosity(verbosity)
    if not wrapped.is_fast:
        raise UserError(f"no file {directory / FILE}, and none can be built from its other files")
    return wrapped


def _line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
