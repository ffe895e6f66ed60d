"""`python -m eval.speedup`: tokens per second of plain decoding and of the drafting methods.

May import `dart_jax`, `eval.benchmarks`, `eval.methods` and `eval.latency`. Start with
`program.py`.
"""
