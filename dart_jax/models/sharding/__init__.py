"""The sharing of a model among devices: the weights that each holds, and their exchanges.

May import the configs and `dart_jax.errors`. Start with `rules.py`.
"""
