"""The web app: a page that shows drafting as it happens. `python -m dart_jax.app` starts it.

A visitor's prompt and `settings` become an `Answer` and a request, which `service` passes to the
serving engine; `page` reads at intervals what the answer has received, and draws it with `markup`
and `step_view` (`scores`, `tree_picture`). Only `page` uses Gradio. May import `dart_jax.serving`,
`dart_jax.programs`, `dart_jax.model` and what they import. Start with `page.py`.
"""
