"""How devices share a model: which weights each holds, and what they add up.

May import the configs and `dart_jax.errors`. Start with `rules.py`.
"""
