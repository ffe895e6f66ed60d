"""Counts a corpus for an n-gram model, in several processes.

May import `dart_jax`, `train.data` and `train.run`. Start with `program.py`.
"""
