"""Speculative decoding: the decode step, draft trees, drafting methods and the tree search.

May import `dart_jax.models` and `dart_jax.ngram`. Start with `step.py`, one decode step from
verification to the next draft, then `reading.py`, which comes before the first one.
"""
