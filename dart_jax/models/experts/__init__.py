"""Mixtures of experts. Imports `dart_jax.models.layers` and `dart_jax.models.config`; the target
imports it."""
