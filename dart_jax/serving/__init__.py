"""The serving engine: a thread that decodes whatever is asked for at the moment.

May import `dart_jax.engine`, `dart_jax.generation` and `dart_jax.model`. Start with `engine.py`;
`setup.py` says what is allocated and compiled for a model.
"""
