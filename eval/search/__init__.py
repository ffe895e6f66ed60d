"""`python -m eval.search`: the ways of searching trees beside each other, and n-gram tables of
several sizes.

May import `dart_jax`, `eval.benchmarks`, and `clock` and `report` of
`eval.latency`. Start with `program.py`.
"""
