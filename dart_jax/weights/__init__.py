"""Model files: checkpoints, downloads from the Hugging Face hub, and the per-user cache.

May import `dart_jax.models`, `dart_jax.named`, `dart_jax.ngram` and `dart_jax.text`. Start with
`checkpoint.py`.
"""
