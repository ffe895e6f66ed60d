"""Benchmarks, their questions, and the prompts made from these.

May import `dart_jax`. Start with `registry.py`.
"""
