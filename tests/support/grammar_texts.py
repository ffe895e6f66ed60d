"""Texts that follow a structure, for a small tokenizer of bytes."""

import numpy as np
from tokenizers_made import byte_level

from dart_jax.grammar.matching import Grammars
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.text.tokenizer import Tokenizer

_BACKEND = byte_level()
_BACKEND.add_special_tokens(["<end>", "<|other|>"])
TOKENIZER = Tokenizer(_BACKEND)
END = _BACKEND.token_to_id("<end>")
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, (END,))


def allowed(matcher):
    """The tokens that may follow the text of a matcher."""
    words = matcher.fit(np.zeros((4, 1), np.int32), 0, 0).masks[0]
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def judge(**structure):
    """Tells of texts whether they have a structure from their beginning to their end."""
    source = GRAMMARS.check(StructuredOutputs.of(structure))

    def follows(text):
        matcher = GRAMMARS.start(source)
        matcher.advance(TOKENIZER.encode(text))
        return matcher.error is None and END in allowed(matcher) and matcher.error is None

    return follows


def follows(text, **structure):
    """Whether a text has a structure from its beginning to its end."""
    return judge(**structure)(text)
