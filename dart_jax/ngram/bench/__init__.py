"""`python -m dart_jax.ngram bench`: size, memory and speed of the n-gram engine.

May import the whole library. Start with `benchmark.py`.
"""
