"""The training objective: a drafter's predictions after every prefix, and their loss.

May import `dart_jax`, `train.data`, `train.run` and `train.teacher`. Start with `loss.py`.
"""
