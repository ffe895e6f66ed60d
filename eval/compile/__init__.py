"""`python -m eval.compile`: compiles for a GPU or TPU that is not there.

May import `dart_jax` and `eval.latency`. Start with `program.py`.
"""
