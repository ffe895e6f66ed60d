"""Checks that an n-gram model was counted with the target's tokenizer."""

from __future__ import annotations

from dart_jax.errors import UserError
from dart_jax.ngram.model import NgramModel
from dart_jax.text.fingerprint import UNKNOWN, Vocabulary, tokenizer_fingerprint, vocabulary_size


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
