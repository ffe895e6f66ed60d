"""Tools: functions that a model may ask a client to call.

`formats.py` says how families of models write calls, `request.py` what a client offers, and
`history.py` how the model is told of tools and of earlier calls. `reader.py` finds calls in what
the model writes. Where arguments are XML instead of JSON, `xml_grammar.py` holds the model to them,
and `parameters.py` tells their types. May import
`dart_jax.serve.body`, `dart_jax.grammar` and `dart_jax.text`.
"""
