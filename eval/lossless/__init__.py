"""`python -m eval.lossless`: checks that drafting leaves the output unchanged.

May import `dart_jax`, `eval.benchmarks` and `eval.methods`. Start with `program.py`.
"""
