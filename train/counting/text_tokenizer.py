"""The tokenizer of a corpus: encodes text, ends documents, renders chats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from dart_jax.data.contents import Chat
from dart_jax.errors import UserError
from dart_jax.text.fingerprint import vocabulary_size
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from train.data.documents import LONGEST, ChatTemplate, Document


@dataclasses.dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer with its chat template.

    Attributes:
      backend: encodes text and adds special tokens around it.
      eos: id that ends a document, if known.
      template: renders chats, if there is a chat template.
      template_text: source of the chat template.
    """

    backend: tokenizers.Tokenizer
    eos: int | None = None
    template: ChatTemplate | None = None
    template_text: str = ""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return vocabulary_size(self.backend)

    def eos_named(self, token: str | None) -> int:
        """Returns the id of `token`, or the tokenizer's own end-of-sequence id if it is None.

        Raises:
          UserError: there is no such token.
        """
        if token is None:
            if self.eos is None:
                raise UserError(
                    "the tokenizer names no token that ends a document; pass --eos-token or "
                    "--no-eos"
                )
            return self.eos
        eos = self.backend.token_to_id(token)
        if eos is None:
            raise UserError(f"--eos-token: the tokenizer has no token {token!r}")
        return eos


def load(source: str, template_kwargs: dict[str, Any] | None = None) -> TextTokenizer:
    """Reads a `tokenizer.json`, a directory, or a repository of the Hugging Face hub.

    Only a repository uses the network.

    Args:
      source: the path, or the name of the repository.
      template_kwargs: for the chat template.

    Raises:
      UserError: there is no tokenizer, or it is damaged.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return TextTokenizer(Tokenizer.load(path).backend)
    directory = hub.resolve(source, patterns=hub.TOKENIZER)
    tokenizer = Tokenizer.load(directory)
    eos = tokenizer.wrapped.eos_token_id
    if eos is None:
        from dart_jax.weights.checkpoint import load_eos

        eos = next(iter(load_eos(directory)), None)

    def template(chat: Chat) -> str:
        options = (template_kwargs or {}) | ({"tools": chat.tools} if chat.tools else {})
        chosen = tokenizer.template_for(options)
        options |= {"tokenize": False, "chat_template": chosen}
        messages = tokenizer.for_template(chat.messages, chosen)
        return str(tokenizer.wrapped.apply_chat_template(messages, **options))

    source = str(tokenizer.chat_template or "")
    return TextTokenizer(tokenizer.backend, eos, template if source else None, source)


def encode(
    backend: tokenizers.Tokenizer, documents: list[Document], eos: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Encodes documents as concatenated tokens int32 [n] and offsets int64 [documents + 1].

    Texts get the tokenizer's special tokens, chats have those of their template. Every document
    ends with `eos`, unless that is None or a further piece of the document follows.
    """
    tokens: list[int] = []
    offsets = [0]
    encodings = iter(
        backend.encode_batch_fast(
            [document.text.decode() for document in documents if not document.tokens],
            add_special_tokens=_needs_special_tokens(documents[0]),
        )
    )
    for document in documents:
        if document.tokens:
            ids = np.frombuffer(document.text, np.int32).tolist()
        else:
            ids = next(encodings).ids
        tokens += ids
        if eos is not None and document.last and ids[-1:] != [eos]:
            tokens.append(eos)
        offsets.append(len(tokens))
    return np.array(tokens, np.int32), np.array(offsets)


def batches(documents: list[Document]) -> Iterator[list[Document]]:
    """Groups documents of one kind into batches whose encoding needs little memory."""
    batch: list[Document] = []
    held = 0
    for document in documents:
        alike = not batch or _needs_special_tokens(document) == _needs_special_tokens(batch[0])
        if batch and (held + len(document.text) > LONGEST or not alike):
            yield batch
            batch, held = [], 0
        batch.append(document)
        held += len(document.text)
    if batch:
        yield batch


def _needs_special_tokens(document: Document) -> bool:
    return document.first and not document.chat
