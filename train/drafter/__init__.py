"""The program `train-drafter`.

May import `dart_jax` and the other packages of `train`, but not `recipes`. Start with `program.py`.
"""
