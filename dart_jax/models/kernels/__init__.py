"""Choices between kernels, and what they share: Pallas' helpers, weights in 8 bits or in tiles, and
inputs of products. Imports `cpu` and `sharding`; attention and layers import it."""
