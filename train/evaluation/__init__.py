"""Evaluates drafters: agreement with the target, acceptance length, and comparisons.

May import `dart_jax`, `train.data`, `train.run` and `train.objective`. Start with `acceptance.py`.
"""
