"""The program `regenerate`.

May import `dart_jax`, `train.data` and `train.run`. Start with `program.py`.
"""
