"""Recipes: the packaged models, and SmolLM2 in a given time.

Not part of a wheel: run them from a checkout, `python -m train.recipes.smollm2`. May import all of
`train`. Start with `smollm2.py`.
"""
