"""The n-gram model: counted from token sequences, stored in one file, queried by the tree search.

May import `dart_jax.text`. Start with `model.py`; `builder.py` writes the file, `runs.py` counts
corpora larger than memory.
"""

from dart_jax.ngram.builder import NgramBuilder
from dart_jax.ngram.model import NgramModel
from dart_jax.ngram.windows import WindowLayout
from dart_jax.text.fingerprint import tokenizer_fingerprint

__all__ = ["NgramBuilder", "NgramModel", "WindowLayout", "tokenizer_fingerprint"]
