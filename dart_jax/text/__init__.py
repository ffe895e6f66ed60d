"""Text and token ids: tokenizers, their fingerprints, and incremental decoding to text.

Imports only `dart_jax.errors`. Start with `tokenizer.py`.
"""
