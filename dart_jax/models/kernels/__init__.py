"""Choices between kernels, and what they share: Pallas' helpers, and weights in 8 bits or in tiles.
Imports `cpu` and `inputs` of `dart_jax.models`; attention, experts and layers import it."""
