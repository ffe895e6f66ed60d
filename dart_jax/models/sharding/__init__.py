"""Shares of a model: the weights that each device holds, and the sums over devices.

May import the configs and `dart_jax.errors`. Start with `rules.py`.
"""
