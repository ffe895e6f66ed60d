"""Programs that measure what `dart_jax` does."""
