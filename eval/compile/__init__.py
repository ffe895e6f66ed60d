"""`python -m eval.compile`: what a GPU or TPU would run, compiled without one.

May import `dart_jax` and `eval.latency`. Start with `program.py`.
"""
