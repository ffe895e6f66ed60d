"""Attention: of new rows to each other and to a cached prefix, in plain JAX and as GPU kernels.
Imports `dart_jax.models.cache`, `cpu` and `kernels`; the models import it."""
