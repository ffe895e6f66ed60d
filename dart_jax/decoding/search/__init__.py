"""The tree search: candidates become a packed draft tree, on the host or on the device.

`choice.py` chooses between the ways, which share the interface in `base.py` and give the same
trees. On the host, `pruner.py` calls the C++ search; `cuda_runtime.py` finds what XLA needs to call
it on an NVIDIA GPU. On the device, `device.py` searches in JAX: `beam.py` with a drafter's
candidates, `best_first.py` with only an n-gram model. May import `dart_jax.ngram`,
`dart_jax.models.cpu`, and `host_buffer` and `vocabulary` of `dart_jax.decoding`. Start with
`base.py`.
"""
