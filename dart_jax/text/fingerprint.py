"""The fingerprint of a tokenizer: two vocabularies are the same if their fingerprints are."""

from __future__ import annotations

import hashlib
import struct
from typing import Protocol

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
