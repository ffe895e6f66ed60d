"""Structured outputs: JSON schemas, regular expressions and grammars that texts must follow.

`outputs.py` reads what users ask for; `matching.py` finds the tokens that may follow a text and the
drafts that fit, by llguidance. `min_tokens.py` keeps texts from ending early. Imports only
`dart_jax.errors` and `dart_jax.text`.
"""
