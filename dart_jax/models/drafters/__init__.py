"""The `config.json` of drafters: which fields are known, and which formats there are.

May import `dart_jax.errors` and `dart_jax.models.config_fields`. Start with `fields.py`.
"""
