"""From a corpus to the merged counts of an n-gram model, in processes or on a Ray cluster.

May import `dart_jax` and `train.data`. Start with `pipeline.py`; `train/ngram.py` is the program.
"""
