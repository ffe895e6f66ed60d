"""Functions of the C++ core for models on CPUs.

    foreign.py   their registration with XLA
    products.py  products with packed weights
    rows.py      rows that are looked up, kept or compared

Attention is in `attention/native.py`. Imports `dart_jax._core`, `cache` and `inputs`; the other
models import it.
"""
