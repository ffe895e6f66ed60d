"""The web app: a chat that shows drafting as it happens. `python -m dart_jax.app` starts it.

`page` is Gradio's chat, with what `step_view` draws of the last answer next to it; `answers` asks
the engine. May import `dart_jax.programs`, `dart_jax.data`, `dart_jax.engine` and what they import.
"""
