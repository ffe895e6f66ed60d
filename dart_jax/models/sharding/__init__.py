"""The sharing of a model among devices: the weights that each holds, and what they exchange.

May import the configs and `dart_jax.errors`. Start with `rules.py`.
"""
