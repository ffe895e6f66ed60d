"""The serving engine: many requests at once, decoded in slots of one running batch.

May import `dart_jax.decoding`, `dart_jax.generation` and `dart_jax.model`. Start with `request.py`
(what clients ask), then `engine.py`.
"""
