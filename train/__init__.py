"""Programs that train what `dart_jax` runs."""
