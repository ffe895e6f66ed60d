"""The tokenizer a corpus is counted with: what encodes text, what ends it, what renders chats."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import tokenizers

from dart_jax.errors import UserError
from dart_jax.ngram.fingerprint import vocabulary_size
from train.documents import LONGEST, ChatTemplate, Document

_HUB_FILES = ("tokenizer*", "special_tokens_map.json", "*config.json", "*.jinja", "*.model")


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

    Only the last touches the network. A `tokenizer.json` is taken as it stands, since that is how
    targets are loaded; transformers' own classes may rebuild it differently.

    Raises:
      UserError: there is none, or it is damaged.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return TextTokenizer(_backend(path))
    return _directory(path if path.is_dir() else _download(source))


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


def _directory(path: Path) -> TextTokenizer:
    import transformers

    transformers.logging.set_verbosity_error()
    file = path / "tokenizer.json"
    kind: Any = (
        transformers.PreTrainedTokenizerFast if file.is_file() else transformers.AutoTokenizer
    )
    try:
        tokenizer = kind.from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"cannot read a tokenizer from {path}: {_line(error)}") from None
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer in {path} has no tokenizer.json and cannot be made one")
    backend = _backend(file) if file.is_file() else _plain(tokenizer.backend_tokenizer)
    eos = tokenizer.eos_token_id
    if eos is None:
        from dart_jax.checkpoint import load_eos  # which imports all of JAX

        eos = next(iter(load_eos(path)), None)
    template = None
    if tokenizer.chat_template is not None:
        template = cast(ChatTemplate, partial(tokenizer.apply_chat_template, tokenize=False))
    return TextTokenizer(backend, eos, template, str(tokenizer.chat_template or ""))


def _backend(path: Path) -> tokenizers.Tokenizer:
    try:
        return _plain(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"cannot read {path}: {_line(error)}") from None


def _plain(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Without the padding and truncation that a file may ask for."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _download(source: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # many kinds
        raise UserError(
            f"no tokenizer {source}: not a file or directory, and the hub says: {_line(error)}"
        ) from None


def _line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def single_threaded() -> None:
    """For worker processes, of which there is one a core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
