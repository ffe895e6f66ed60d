"""The decoding methods that the programs compare, their draft trees and their timing.

May import `dart_jax` and `eval.benchmarks`. Start with `registry.py`.
"""
