"""Tells whether an n-gram model was counted with a target's tokenizer."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Protocol

from dart_jax.errors import UserError

if TYPE_CHECKING:
    from dart_jax.ngram.model import NgramModel

# Stands in an n-gram file where the tokenizer is not known.
UNKNOWN = bytes(32)


class Vocabulary(Protocol):
    """A `tokenizers.Tokenizer` or a tokenizer of transformers."""

    def get_vocab(self) -> dict[str, int]:
        """Every token and its id, added tokens included."""
        ...


def vocabulary_size(tokenizer: Vocabulary) -> int:
    """The least number that all ids are below: with gaps, more than there are tokens."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def tokenizer_fingerprint(tokenizer: Vocabulary) -> bytes:
    """32 bytes that agree exactly where the vocabularies do: every id means the same token.

    SHA-256 over all tokens in ascending order of their ids, each as id (8 bytes), length in bytes
    (8 bytes), both little-endian, and UTF-8.
    """
    digest = hashlib.sha256()
    for id, token in sorted((id, token) for token, id in tokenizer.get_vocab().items()):
        encoded = token.encode(errors="surrogatepass")
        digest.update(struct.pack("<QQ", id, len(encoded)) + encoded)
    return digest.digest()


def check_tokenizer(
    ngram: NgramModel, tokenizer: Vocabulary, name: str, vocab_size: int | None = None
) -> None:
    """Checks that an n-gram model was counted with this tokenizer.

    A model without a fingerprint, one converted from the reference's format say, passes if its
    vocabulary is no larger than `vocab_size`: the tokenizer's, unless a target's is given, which
    often has more embeddings than its tokenizer has tokens.

    Raises:
      UserError: it was counted with another tokenizer.
    """
    known = vocab_size or vocabulary_size(tokenizer)
    if ngram.fingerprint == UNKNOWN:
        if ngram.vocab_size > known:
            raise UserError(
                f"the n-gram model {name} was made for a vocabulary of {ngram.vocab_size} tokens, "
                f"here it is {known}; convert or count one with this tokenizer"
            )
    elif ngram.fingerprint != tokenizer_fingerprint(tokenizer):
        raise UserError(
            f"the n-gram model {name} was counted with another tokenizer; give the one it was "
            "counted with, or count one with this"
        )
