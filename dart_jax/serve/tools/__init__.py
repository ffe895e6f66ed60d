"""Tools: functions that a model may ask a client to call.

`formats.py` says how families of models write calls, `request.py` what a client offers and how the
model is told, `reader.py` finds calls in what the model writes. May import `dart_jax.serve.fields`
and `dart_jax.serve.errors`, and `dart_jax.grammar` and `dart_jax.text`.
"""
