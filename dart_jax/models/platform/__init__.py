"""How a platform computes models best: its kernels, and the form of the parameters. Imports
`dart_jax.models.attention` and `dart_jax.models.layers`; the models import it."""
