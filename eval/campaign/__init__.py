"""`python -m eval.campaign`: all measurements of a new device, in order of value.

It runs the other programs in processes of their own. May import `dart_jax`. Start with `parts.py`.
"""
