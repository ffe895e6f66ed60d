"""The serving engine: a thread that decodes the requests of clients together.

May import `dart_jax.model` and what it imports. Start with `engine.py`;
`setup.py` decides what is allocated and compiled for a model.
"""
