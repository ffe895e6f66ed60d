"""`python -m train.drafter`: trains a drafter for a target.

May import `dart_jax` and the other packages of `train`, but not `recipes`. Start with `program.py`.
"""
