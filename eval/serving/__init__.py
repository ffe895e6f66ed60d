"""`python -m eval.serving`: compares a server drafted and plain.

Loads, arrivals and percentiles are left to GuideLLM and vLLM: docs/serving.md. May import
`dart_jax`, `eval.benchmarks`, and `report` of `eval.latency`. Start with `comparison.py`.
"""
