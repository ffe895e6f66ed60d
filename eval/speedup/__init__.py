"""`python -m eval.speedup`: measures the drafting methods against plain decoding.

May import `dart_jax`, `eval.benchmarks`, `eval.methods` and `eval.latency`. Start with
`program.py`.
"""
