"""Text and token ids: tokenizers, their fingerprints, and text that grows token by token.

Imports only `dart_jax.errors`. Start with `tokenizer.py`.
"""
