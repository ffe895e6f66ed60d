"""Bodies of requests: `fields.py` has what clients may ask for, `neutral.py` what of other servers
changes nothing, `structure.py` the structures of texts among them. May import
`dart_jax.serve.errors`, and `dart_jax.grammar`.
"""
