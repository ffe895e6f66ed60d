"""The `config.json` of drafters: which fields are known, and which formats there are.

May import `dart_jax.errors`. Start with `fields.py`.
"""
