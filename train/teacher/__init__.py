"""The frozen target whose outputs a drafter is trained on.

May import `dart_jax`, `train.data` and `train.run`. Start with `teacher.py`; `outputs.py` keeps the
target's outputs on disk.
"""
