"""Fields of `config.json`: checks of all, the options of drafters, and the formats of these.

May import `dart_jax.errors`. Start with `fields.py`.
"""
