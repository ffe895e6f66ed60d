"""Weights and other files of models: read, written, found on the Hugging Face hub, and cached.

May import `dart_jax.models`, `dart_jax.ngram` and `dart_jax.text`. Start with `checkpoint.py`.
"""
