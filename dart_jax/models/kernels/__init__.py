"""Choices between kernels, and what they share: Pallas' helpers, and weights in 8 bits. Imports
`dart_jax.models.cpu`; attention, experts and layers import it."""
