"""Text as data: records of data files, and the Python standard library, the text of the demo.

May import `dart_jax.weights`, for the hub. Start with `records.py`.
"""
