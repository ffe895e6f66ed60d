"""Recipes: the packaged models, SmolLM2 in a given time, and the memory of training.

Not part of a wheel: run them from a checkout, `python -m train.recipes.smollm2`. May import all of
`train`. Start with `smollm2.py`.
"""
