"""Bodies of requests: `fields.py` has what clients may ask for, `neutral.py` what of other servers
changes nothing, `content.py` the texts of messages, `structure.py` the structures of texts, and
`responses.py` OpenAI's /v1/responses as chats. `errors.py` has the bodies of refusals. Imports no
other part of `dart_jax.serve`.
"""
