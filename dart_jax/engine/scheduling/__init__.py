"""Who runs, who waits, and who holds which pages: what the engine decides on the host.

May import `request`, `config` and `rows` of `dart_jax.serving`. Start with `scheduler.py`.
"""
