"""The tree search: candidates become a packed draft tree, on the host or on the device.

A decode step gets its search from `choice.py`: a `HostSearch` (`host.py`), the C++ search, which
XLA calls on CPUs and Python elsewhere, or a `DeviceSearch` (`device.py`), the same in JAX
(`beam.py`). Both give the same trees, up to ties, and are pytrees: called with a host buffer
between two programs, or passed to a program that calls `in_program`. May import `dart_jax.ngram`,
`dart_jax.models.cpu`, and `host_buffer`, `tree` and `vocabulary` of `dart_jax.decoding`. Start with
`choice.py`.
"""
