"""Speculative decoding: the draft tree, its verification and acceptance, the search, the loops.

May import `dart_jax.models` and `dart_jax.ngram`. Start with `step.py`, one decode step from
verification to the next draft, then `loop.py`, which repeats it. `drafting/` holds the drafting
methods.
"""
