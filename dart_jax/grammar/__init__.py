"""Grammars that texts must follow: JSON schemas, regular expressions, choices and grammars.

`outputs.py` has what users ask for, `matching.py` which tokens may follow a text and which drafts
fit; both build on llguidance. `min_tokens.py` keeps texts from ending early. Imports only
`dart_jax.errors` and `dart_jax.text`.
"""
