"""`python -m eval.latency`: times a step against the hardware's limits.

May import `dart_jax`. Start with `program.py`.
"""
