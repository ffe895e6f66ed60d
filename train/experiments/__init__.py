"""The paper's experiments: what is varied, how runs are compared, and the report.

May import `dart_jax` and `train.data`. Start with `variants.py`; `train/ablate.py` is the program.
"""
