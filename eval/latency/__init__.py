"""`python -m eval.latency`: the time of every stage of a step, next to the hardware's limit.

May import `dart_jax`. Start with `program.py`.
"""
