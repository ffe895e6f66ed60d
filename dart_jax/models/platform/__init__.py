"""The best way to compute models on a platform: kernels, and the form of the weights. Imports
`dart_jax.models.kernels`, `layers`, `sharding` and `cpu`; the networks and decoding import it."""
