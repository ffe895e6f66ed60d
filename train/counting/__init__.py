"""Counts a corpus for an n-gram model, in several processes.

May import `dart_jax` and `train.data`. Start with `pipeline.py`; `train/ngram.py` is the program.
"""
