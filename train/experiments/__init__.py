"""The experiments of `train.ablate`: plans and report.

May import `dart_jax`. Start with `plans.py`.
"""
