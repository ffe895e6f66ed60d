"""The web app: a page that shows drafting as it happens. `python -m dart_jax.app` starts it.

Data flows one way. A visitor's prompt and settings (`chat`, `settings`) become an `Answer`, and a
request that `service` passes to the serving engine; `events` reads what the answer has received so
far and draws it (`markup`, `step_view`, `tree_picture`). Only `page` and `events` use Gradio. May
import `dart_jax.serving`, `dart_jax.programs`, `dart_jax.model` and what they import. Start with
`page.py`.
"""
