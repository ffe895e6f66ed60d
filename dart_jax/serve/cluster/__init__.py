"""Several engines, on one machine or many, behind one HTTP server; Ray Serve runs them.

A request goes `cluster.py` -> `router.py` (which replica) -> `replica.py` (its engine), and again
to another replica if that one dies. May import `dart_jax.serving`, `dart_jax.text` and
`dart_jax.programs`; only `deployment.py`, `router.py` and `replica.py` need Ray.
"""
