"""Checks that an n-gram model was counted with the target's tokenizer."""

from __future__ import annotations

from dart_jax.errors import UserError
from dart_jax.ngram.model import NgramModel
from dart_jax.text.fingerprint import UNKNOWN, Vocabulary, extends, vocabulary_size


def check_tokenizer(
    ngram: NgramModel, tokenizer: Vocabulary, name: str, vocab_size: int | None = None
) -> None:
    """Checks that an n-gram model was counted with this tokenizer, or with one to which this one
    only adds tokens.

    A model without a fingerprint, such as one converted from the reference's format, passes if its
    vocabulary is no larger than the tokenizer's or than `vocab_size`: a target often has more
    embeddings than its tokenizer has tokens.

    Raises:
      UserError: it was counted with another tokenizer.
    """
    limit = max(vocab_size or 0, vocabulary_size(tokenizer))
    if ngram.fingerprint == UNKNOWN:
        if ngram.vocab_size > limit:
            raise UserError(
                f"the n-gram model {name} was made for a vocabulary of {ngram.vocab_size} tokens, "
                f"here it is {limit}; convert or count one with this tokenizer"
            )
    elif not extends(tokenizer, ngram.fingerprint):
        raise UserError(
            f"the n-gram model {name} was counted with another tokenizer; count one with this "
            "tokenizer, or convert a trie of the reference for it"
        )
