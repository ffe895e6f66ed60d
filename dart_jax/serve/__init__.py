"""The HTTP server: OpenAI's API on top of the serving engine.

`app.py` lists the routes; an answer goes `body.py` -> `fields.py` -> `prompts.py` -> `texts.py` ->
`completions.py` or `chat.py` -> `answer.py`. May import `dart_jax.serving`, `dart_jax.text` and
`dart_jax.programs`.
"""
