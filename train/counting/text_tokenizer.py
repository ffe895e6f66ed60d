"""The tokenizer a corpus is counted with: what encodes text, what ends it, what renders chats."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import tokenizers

from dart_jax.errors import UserError
from dart_jax.text.fingerprint import vocabulary_size
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from train.data.documents import LONGEST, ChatTemplate, Document


@dataclasses.dataclass(frozen=True)
class TextTokenizer:
    """What a source gives.

    Attributes:
      backend: encodes, adding the special tokens that belong around a text.
      eos: id that ends a document, if one is known.
      template: renders chats, if there is one.
      template_text: how it is written.
    """

    backend: tokenizers.Tokenizer
    eos: int | None = None
    template: ChatTemplate | None = None
    template_text: str = ""

    @property
    def vocab_size(self) -> int:
        """Beyond the highest id."""
        return vocabulary_size(self.backend)

    def eos_named(self, token: str | None) -> int:
        """The id of a token, or of the tokenizer's own choice.

        Raises:
          UserError: there is none.
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


def load(source: str) -> TextTokenizer:
    """Reads a `tokenizer.json`, a directory, or a repository of the Hugging Face hub.

    Only the last touches the network.

    Raises:
      UserError: there is none, or it is damaged.
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
    template = None
    if tokenizer.chat_template is not None:
        template = cast(
            ChatTemplate, partial(tokenizer.wrapped.apply_chat_template, tokenize=False)
        )
    return TextTokenizer(tokenizer.backend, eos, template, str(tokenizer.chat_template or ""))


def encode(
    backend: tokenizers.Tokenizer, documents: list[Document], eos: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int32 [n], document after document, and offsets int64 [documents + 1].

    A text begins with the tokenizer's special tokens, a chat has its template's. Every document
    ends on `eos`, unless that is None or more of it follows.
    """
    tokens: list[int] = []
    offsets = [0]
    encodings = backend.encode_batch_fast(
        [document.text.decode() for document in documents],
        add_special_tokens=_takes_special_tokens(documents[0]),
    )
    for document, encoding in zip(documents, encodings, strict=True):
        ids = encoding.ids
        tokens += ids
        if eos is not None and document.last and ids[-1:] != [eos]:
            tokens.append(eos)
        offsets.append(len(tokens))
    return np.array(tokens, np.int32), np.array(offsets)


def batches(documents: list[Document]) -> Iterator[list[Document]]:
    """Documents of one kind together, so many that encoding them takes little memory."""
    batch: list[Document] = []
    held = 0
    for document in documents:
        alike = not batch or _takes_special_tokens(document) == _takes_special_tokens(batch[0])
        if batch and (held + len(document.text) > LONGEST or not alike):
            yield batch
            batch, held = [], 0
        batch.append(document)
        held += len(document.text)
    if batch:
        yield batch


def _takes_special_tokens(document: Document) -> bool:
    return document.first and not document.chat


def single_threaded() -> None:
    """For worker processes, of which there is one a core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
