"""Layers: linear layers, norms, gated MLPs and mixtures of experts. Imports `kernels`, `sharding`
and the configs of `dart_jax.models`; the networks import it."""
