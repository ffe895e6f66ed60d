"""Drafters: DART, EAGLE-3 and block drafters. May import all else in `dart_jax.models` but
`pure` and `platform`.

Start with `dart.py`, the method that the project is named after; `block.py` has DFlash, DSpark and
their kin, `pairs.py` the scores of pairs of tokens that several of them have.
"""
