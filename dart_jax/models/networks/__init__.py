"""The networks: the target and its drafters. May import all else in `dart_jax.models`.

Start with `target.py`, then `dart.py`, the method that the project is named after; `block.py` has
DFlash, DSpark and their kin, `pairs.py` the scores of pairs of tokens that several of them have.
`pure.py` converts the modules to functions over dicts of arrays.
"""
