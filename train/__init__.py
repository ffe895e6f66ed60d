"""Programs that train drafters and count n-gram models for `dart_jax`.

The modules at the top level are the programs, which `python -m dart_jax` lists.
`docs/architecture.md` lists the packages.

May import `dart_jax`, never `eval`. Start with `drafter.py`.
"""
