"""Networks: the target, the DART and EAGLE-3 drafters, and the layers and caches they share.

Pure computation: nothing here knows of files, tokenizers, decode loops or training. Imports only
`dart_jax.errors`. Start with `target.py`, then `drafter.py`; `pure.py` turns the modules into
functions over dicts of arrays.
"""
