"""Measurements of our own results, run from a checkout: `python -m eval.scripts.ngram`.

Not part of a wheel. Each prints a table and writes a report of `results/` by `--json`. May import
`dart_jax` and all of `eval`.
"""
