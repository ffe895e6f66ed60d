"""Grammars that texts must follow: JSON schemas, regular expressions, choices and grammars.

`outputs.py` has what users ask for, `matching.py` which tokens may follow a text and which drafts
fit. Both build on llguidance. Imports only `dart_jax.errors` and `dart_jax.text`.
"""
