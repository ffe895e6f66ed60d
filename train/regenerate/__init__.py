"""`python -m train.regenerate`: lets a target write the answers that its drafter is trained on.

May import `dart_jax`, `train.data` and `train.run`. Start with `program.py`.
"""
