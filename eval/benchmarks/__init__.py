"""Benchmarks: which there are, their questions, and the prompts made from them.

May import `dart_jax`. Start with `registry.py`.
"""
