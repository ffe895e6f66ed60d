"""Evaluates drafters: agreement with the target, and acceptance length.

May import `dart_jax`, `train.data`, `train.run` and `train.objective`. Start with `acceptance.py`.
"""
