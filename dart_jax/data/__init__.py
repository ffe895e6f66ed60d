"""Data: records of data files, and the Python standard library as the demo's text.

May import `dart_jax.weights`, for the hub. Start with `records.py`.
"""
