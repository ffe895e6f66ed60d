"""Speculative decoding: draft trees, their verification and acceptance, tree search, decode loops.

May import `dart_jax.models` and `dart_jax.ngram`. Start with `step.py`, one decode step from
verification to the next draft, then `prefill.py`, which comes before the first one, and `loop.py`,
which repeats it. `drafting/` contains the drafting methods.
"""
