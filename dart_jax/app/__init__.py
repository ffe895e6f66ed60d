"""The web app: a page that shows drafting as it happens. `python -m dart_jax.app` starts it.

Data flows one way. What a visitor wrote and set (`chat`, `settings`) becomes an `Answer`; `service`
lets `turns` take its steps on one thread, in turn with those of other visitors; `events` reads what
there is so far and draws it (`markup`, `step_view`, `tree_picture`). Only `page` and `events` know
Gradio.
"""
