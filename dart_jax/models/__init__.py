"""Networks: the target, the drafters, and the layers and caches they share.

Pure computation, independent of files, tokenizers, decode loops and training. Imports only
`dart_jax._core`, `errors.py`, `machine.py` and `memory.py`. Start with `target.py`, then
`drafters/dart.py`; `pure.py` converts the NNX modules to functions over dicts of arrays. Packages,
and `cpu.py`, each of which may import those before it: `config_json`, `sharding`, `cpu`, `kernels`,
`attention`, `experts`, `drafters`, `platform`.
"""
