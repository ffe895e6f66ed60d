"""Structured outputs: JSON schemas, regular expressions and grammars that texts must follow.

`outputs.py` reads what users ask for, with `schemas.py` and `gbnf.py`; `matching.py` finds the
tokens that may follow a text and the drafts that fit, by llguidance. `limits.py` and `trials.py`
protect a server from what its clients ask for. `after_thoughts.py` lets texts think before they
follow a grammar, `min_tokens.py` keeps them from ending early. Imports only `dart_jax.errors` and
`dart_jax.text`.
"""
