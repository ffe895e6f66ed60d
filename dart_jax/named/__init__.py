"""Models that have a name, such as the demo: a target with its drafter and its n-gram model.

May import `dart_jax.errors`, `dart_jax.files` and `dart_jax.progress`. Start with `models.py`.
"""
