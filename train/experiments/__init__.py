"""The paper's experiments: variants, comparison of runs, and report.

May import `dart_jax` and `train.data`. Start with `variants.py`; `train/ablate.py` is the program.
"""
