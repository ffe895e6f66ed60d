"""The target's tokenizer: encodes text and chats, decodes ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from dart_jax.errors import UserError, warn
from dart_jax.text import tokenizer_files
from dart_jax.text.chat_template import ChatTemplate
from dart_jax.text.fingerprint import vocabulary_size
from dart_jax.text.tokenizer_files import FILE, line, read_backend


class Tokenizer:
    """Encodes and decodes as the tokenizer that `AutoTokenizer` of transformers makes of the same
    files (see `dart_jax.text.tokenizer_files`).

    transformers is imported only for chat templates, and where it is needed for that.

    Attributes:
      backend: the tokenizer, without padding and truncation.
      directory: holds the other files, such as the chat template, if there is one.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, directory: Path | None = None, wrapped: Any = None
    ):
        """Wraps a tokenizer and switches off its padding and truncation; `wrapped` is that of
        transformers, as far as it was needed to load the tokenizer."""
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.directory = directory
        self._wrapped = wrapped
        self._templates: dict[str, ChatTemplate] = {}  # by their source
        self._processors = False  # whether `chat_template` belongs to a processor

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Reads a target's directory, or only a `tokenizer.json`, without a chat template. Raises
        UserError if there is no tokenizer, or it is damaged."""
        path = Path(path)
        if path.is_file():
            return cls(read_backend(path))
        if not path.is_dir():
            raise UserError(f"no directory {path}; pass one with a {FILE}")
        backend, wrapped = tokenizer_files.read_directory(path)
        return cls(backend, path, wrapped)

    @cached_property
    def wrapped(self) -> Any:
        """The directory's `transformers.PreTrainedTokenizerBase`, with its chat template, or None
        without a directory. Raises UserError if a file next to `tokenizer.json` is damaged."""
        if self.directory is None:
            return None
        wrapped = self._wrapped
        wrapped = tokenizer_files.wrap(self.directory) if wrapped is None else wrapped
        template = tokenizer_files.processor_template(self.directory)
        if template is not None and wrapped.chat_template is None:
            wrapped.chat_template, self._processors = template, True
        elif template not in (None, wrapped.chat_template):
            warn(
                f"{self.directory} holds another chat template for images; the tokenizer's is used"
            )
        return wrapped

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

    @cached_property
    def lead(self) -> tuple[list[int], int]:
        """Ids of a text without meaning, and its characters: what is decoded after it keeps the
        space before its first word, which decoders of SentencePiece's kind take from a text."""
        ids = self.backend.encode("a", add_special_tokens=False).ids[-1:]
        return ids, len(self.decode(ids))

    def get_vocab(self) -> dict[str, int]:
        """Returns every token and its id, added tokens included."""
        return self.backend.get_vocab()

    def outside(self, ids: Iterable[int] | np.ndarray, vocab_size: int) -> str | None:
        """Names the first of some ids that a target with this many embeddings lacks, with its
        token, as some tokenizers have more tokens. Returns None if it has all."""
        id = next((int(id) for id in ids if not 0 <= id < vocab_size), None)
        if id is None:
            return None
        token = self.backend.id_to_token(id) if 0 <= id < self.vocab_size else None
        return f"{id}" if token is None else f"{id} ({token!r})"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encodes a text, with the special tokens that the tokenizer adds around it or without;
        other threads run meanwhile. Raises UserError if the text is not valid Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text holds half of a surrogate pair at character {error.start}; replace it"
            ) from None
        # `backend.encode` would hold Python's lock.
        [encoding] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

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
        text = self.render_chat(messages, **template_kwargs)
        return self.encode(text, add_special_tokens=self.adds_to_chat(text))

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> str:
        """Returns what `encode_chat` encodes, without adding special tokens; raises the same."""
        _check_messages(messages)
        if not self.chat_template:
            where = f"a {FILE} by itself"
            if self.directory is not None:
                where = tokenizer_files.place(self.directory)
            raise UserError(
                f"no chat template in {where}; pass plain text, or put a chat_template.jinja there"
            )
        options = {"add_generation_prompt": True} | template_kwargs
        options["chat_template"] = self.template_for(options)
        template = self.template(options["chat_template"])
        chat = [template.without_thoughts(message) for message in messages]
        if options.get("continue_final_message"):
            chat[-1] = dict(messages[-1])  # it may end among them
        try:
            return self._render(template.messages(chat, options), options)
        except Exception as error:  # a template may raise anything
            raise UserError(f"the chat template refuses the messages: {line(error)}") from error

    def template_for(self, options: Mapping[str, Any]) -> str:
        """Returns the source of the chat template that the options choose, as in transformers: the
        one that `chat_template` names, or is; else the one for `tools`, if there are some; else the
        default. Raises UserError if there is no such template."""
        template, choice = self.chat_template, options.get("chat_template")
        names = sorted(template) if isinstance(template, dict) else []
        if choice is not None and choice not in names and "{" not in choice:
            has = ", ".join(names) or "one without a name"
            raise UserError(f"there is no chat template {choice!r}; there is {has}")
        try:
            return self.wrapped.get_chat_template(choice, options.get("tools"))
        except ValueError as error:
            raise UserError(line(error)) from None

    def template(self, source: str) -> ChatTemplate:
        """What the chat template of this source takes; see `template_for`."""

        def render(messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
            return self._render(messages, {**options, "chat_template": source})

        return self._templates.setdefault(source, ChatTemplate(source, render))

    def adds_to_chat(self, text: str) -> bool:
        """Returns True if the tokenizer adds special tokens around a chat, rendered to `text`.

        Templates contain them; but transformers' processors add a beginning that theirs lacks.
        """
        bos = self.wrapped.bos_token
        return self._processors and not (bos and text.startswith(bos))

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The template's source, or several by name, or None."""
        return None if self.wrapped is None else self.wrapped.chat_template

    def _render(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        options = {**options, "tokenize": False}
        return str(self.wrapped.apply_chat_template(messages, **options))

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Decodes ids. Bytes that are not UTF-8 become U+FFFD; ids without a token are skipped.

        Spaces are kept and `clean_up_tokenization_spaces` is ignored, as by transformers for BPE.
        """
        return self.backend.decode(list(map(int, ids)), skip_special_tokens=skip_special_tokens)


def _check_messages(messages: Any) -> None:
    shape = 'a chat is a list of messages like {"role": "user", "content": "..."}'
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise UserError(f"{shape}, not {_kind(messages)}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UserError(f"{shape}; message {number} is {_kind(message)}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise UserError(f"{shape}; message {number} has no role")
        silent = content is None and role in ("assistant", "tool")
        if not silent and not isinstance(content, str | list):
            raise UserError(f"{shape}; message {number} has no text as its content")


def _kind(value: Any) -> str:
    return "empty" if isinstance(value, list) and not value else f"a {type(value).__name__}"
