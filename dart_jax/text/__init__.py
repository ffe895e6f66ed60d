"""Text and token ids: tokenizers, their fingerprints, and incremental decoding to text.

May import `dart_jax.errors` and `dart_jax.files`. Start with `tokenizer.py`.
"""
