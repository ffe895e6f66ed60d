"""How good a drafter is: its agreement with the target, and the acceptance length it reaches.

May import `dart_jax`, `train.data` and `train.objective`. Start with `acceptance.py`.
"""
