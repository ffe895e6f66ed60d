"""`python -m eval.peers`: compares with other engines on the same weights.

No engine's package is needed: those that are not installed are left out, in one line each. May
import `dart_jax`, `eval.benchmarks` and `eval.methods`. Start with `program.py`.
"""
