"""The decoding methods that programs compare, the trees they choose from, and their timing.

May import `dart_jax` and `eval.benchmarks`. Start with `registry.py`.
"""
