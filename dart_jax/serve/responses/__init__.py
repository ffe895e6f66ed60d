"""OpenAI's /v1/responses, without state: a request becomes one of a chat, and the answer to it is
written as items. May import the other modules of `dart_jax.serve`.
"""
