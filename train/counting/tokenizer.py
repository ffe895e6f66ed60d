"""The tokens of a corpus: examples as training encodes them, and the end of every document."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_eos
from train.data.encoding import Encoder
from train.data.examples import LONGEST, Example, batched


class Encoding(NamedTuple):
    """The encoding of a corpus: a `tokenizer.json` or a directory with a tokenizer's files, JSON
    for the chat template, and the token that ends every document, unless None."""

    tokenizer: Path
    template_kwargs: str
    eos: int | None

    def encode(
        self, examples: Sequence[Example], bad: Callable[[UserError], None]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields batches of documents: their tokens, int32 [n], and offsets, int64 [documents + 1].

        Texts get the tokenizer's special tokens, chats have those of their template. Every document
        ends with `eos`, unless a further piece of the document follows. An example that cannot be
        used is left out, and `bad` is called with the error.
        """
        encoder = _encoder(self.tokenizer, self.template_kwargs)
        for batch, _ in batched(((example, 0) for example in examples), LONGEST):
            tokens, offsets = [np.zeros(0, np.int32)], [0]
            for example, document in zip(batch, encoder.encode(batch, bad=bad), strict=True):
                if document is None or not len(document.tokens):
                    continue
                ids = document.tokens
                if self.eos is not None and example.last and ids[-1] != self.eos:
                    ids = np.append(ids, np.int32(self.eos))
                tokens.append(ids)
                offsets.append(offsets[-1] + len(ids))
            yield np.concatenate(tokens), np.array(offsets)


def load(source: str) -> Tokenizer:
    """Reads a `tokenizer.json`, a directory, or a repository of the Hugging Face hub; raises
    UserError if there is no tokenizer, or it is damaged."""
    path = Path(source).expanduser()
    return Tokenizer.load(path if path.is_file() else hub.resolve(source, patterns=hub.TOKENIZER))


def eos_of(tokenizer: Tokenizer, token: str | None) -> int:
    """Returns the id of `token`, or the tokenizer's own end-of-sequence id if it is None; raises
    UserError if there is no such token."""
    if token is not None:
        eos = tokenizer.backend.token_to_id(token)
        if eos is None:
            raise UserError(f"--eos-token: the tokenizer has no token {token!r}")
        return eos
    eos = None if tokenizer.wrapped is None else tokenizer.wrapped.eos_token_id
    if eos is None and tokenizer.directory is not None:
        eos = next(iter(load_eos(tokenizer.directory)), None)
    if eos is None:
        raise UserError(
            "the tokenizer names no token that ends a document; pass --eos-token or --no-eos"
        )
    return eos


@functools.lru_cache(maxsize=1)
def _encoder(path: Path, template_kwargs: str) -> Encoder:
    tokenizer, options = Tokenizer.load(path), dict[str, Any](json.loads(template_kwargs))
    return Encoder(
        tokenizer, tokenizer.vocab_size, loss_on="all", template_kwargs=options, eos=None
    )
