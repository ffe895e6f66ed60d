"""`python -m dart_jax.ngram bench`: size, memory and speed of the n-gram engine.

May import `dart_jax.model` and what it imports. Start with `benchmark.py`.
"""
