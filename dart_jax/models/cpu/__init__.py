"""What the C++ core computes for models on CPUs. Imports `dart_jax._core`; the models import it."""
