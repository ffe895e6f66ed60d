"""What the C++ core computes for models on CPUs.

    foreign.py   whether XLA can call it
    products.py  products with packed weights
    rows.py      rows that are looked up, kept or compared

Attention is in `attention/native.py`. Imports `dart_jax._core`, `cache` and `inputs`; the other
models import it.
"""
