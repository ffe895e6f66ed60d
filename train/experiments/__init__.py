"""The experiments of `train.ablate`: plans, evaluation of drafters, and report.

May import `dart_jax` and the rest of `train` but its programs. Start with `plans.py`.
"""
