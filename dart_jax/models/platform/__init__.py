"""How a platform computes models best: its kernels, and the form of the parameters. Imports
`dart_jax.models.attention`, `dart_jax.models.layers` and `dart_jax._core`; the models import it,
and kernels in Pallas import its `pallas.py`."""
