"""What the command-line programs of `dart_jax`, `train` and `eval` share.

Which model they load, how they write reports and figures, how they show progress. May import the
whole library. Start with `model_choice.py`.
"""
