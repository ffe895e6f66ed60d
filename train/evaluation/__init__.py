"""Evaluates drafters: agreement with the target, and acceptance length.

May import `dart_jax`, `train.data` and `train.objective`. Start with `acceptance.py`.
"""
