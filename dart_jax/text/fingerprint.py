"""Fingerprints of tokenizers: equal fingerprints mean equal vocabularies."""

from __future__ import annotations

import collections
import hashlib
import struct
from collections.abc import Iterator
from typing import Protocol

# The fingerprint in n-gram files whose tokenizer is unknown.
UNKNOWN = bytes(32)


class Vocabulary(Protocol):
    """A `tokenizers.Tokenizer` or a tokenizer of transformers."""

    def get_vocab(self) -> dict[str, int]:
        """Returns every token and its id, added tokens included."""
        ...


def vocabulary_size(tokenizer: Vocabulary) -> int:
    """Returns the highest id + 1, which exceeds the number of tokens if there are gaps."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def tokenizer_fingerprint(tokenizer: Vocabulary) -> bytes:
    """Returns 32 bytes that are equal exactly if the vocabularies are: every id is the same token.

    SHA-256 over all tokens in ascending order of id, each as its id (8 bytes), its length in bytes
    (8 bytes), both little-endian, and its UTF-8 bytes.
    """
    [whole] = collections.deque(_digests(tokenizer), maxlen=1)
    return whole


def extends(tokenizer: Vocabulary, fingerprint: bytes) -> bool:
    """True if a fingerprint is that of the tokenizer, or of one to which it only adds tokens,
    with higher ids: then every id means the same to both."""
    return any(digest == fingerprint for digest in _digests(tokenizer))


def _digests(tokenizer: Vocabulary) -> Iterator[bytes]:
    """Yields the fingerprints of no tokens, and of the vocabulary up to each of its tokens."""
    digest = hashlib.sha256()
    yield digest.digest()
    for id, token in sorted((id, token) for token, id in tokenizer.get_vocab().items()):
        encoded = token.encode(errors="surrogatepass")
        digest.update(struct.pack("<QQ", id, len(encoded)) + encoded)
        yield digest.digest()
