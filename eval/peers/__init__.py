"""`python -m eval.peers`: compares with other engines on the same weights.

    program.py      options, measurement and table
    engine.py       the engines by name, and what they are given and return
    own.py          this project: plain decoding and DART
    torch_model.py  transformers with PyTorch
    llama_cpp.py    llama.cpp

No engine's package is needed: those that are not installed are left out, in one line each. May
import `dart_jax`, `eval.benchmarks`, `eval.methods` and `eval.latency`. Start with `program.py`.
"""
