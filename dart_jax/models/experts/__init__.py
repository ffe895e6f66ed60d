"""Mixtures of experts. Imports `dart_jax.models.layers`, `kernels` and `config`; the target imports
it."""
