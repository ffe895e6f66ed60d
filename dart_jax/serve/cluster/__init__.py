"""Several engines, on one machine or many, behind one HTTP server; Ray Serve runs them.

A request goes `cluster.py` -> Ray's router -> `replica.py`. May import `dart_jax.engine`,
`dart_jax.text`, `dart_jax.programs` and `serve/errors.py`; only `cluster.py` needs Ray.
"""
