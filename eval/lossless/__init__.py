"""`python -m eval.lossless`: whether the output with drafts is that of plain decoding.

May import `dart_jax`, `eval.benchmarks` and `eval.methods`. Start with `program.py`.
"""
