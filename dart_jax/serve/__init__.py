"""The HTTP server: OpenAI's API on top of the engine.

`app.py` has the routes. An answer goes `body/` (what the client asks) -> `prompts.py` (its
tokens, with `tools`) -> `service.py` (the engine's requests) -> `texts.py` (the engine's outputs
as text) -> `answer.py` (events or one response). May import `dart_jax.engine`,
`dart_jax.programs` and what they import. Start with `service.py`.
"""
