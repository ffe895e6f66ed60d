"""Decoding methods that the programs compare, with their draft trees and their timing.

May import `dart_jax` and `eval.benchmarks`. Start with `registry.py`.
"""
