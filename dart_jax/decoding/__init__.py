"""Speculative decoding: draft trees, their verification and acceptance, tree search.

May import `dart_jax.models` and `dart_jax.ngram`. Start with `step.py`, one decode step from
verification to the next draft, then `reading.py`, which comes before the first one.
`dart_jax.engine` repeats steps. `drafting/` contains the drafting methods.
"""
