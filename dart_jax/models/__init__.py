"""Networks: the target, the drafters, and the layers and caches they share.

Pure computation, independent of files, tokenizers, decode loops and training. Imports only
`dart_jax._core`, `errors.py`, `machine.py` and `memory.py`. Its own files, the configs, `cache.py`
and `cpu.py`, are the base, and import `config_json` alone. Each package may import them and the
packages before it: `sharding`, `kernels`, `attention`, `layers`, `platform`, `networks`. Start with
`networks/target.py`, then `networks/dart.py`.
"""
