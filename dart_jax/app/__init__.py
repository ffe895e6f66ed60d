"""The web app: a page that shows drafting as it happens. `python -m dart_jax.app` starts it.

`page` generates an answer step by step, and draws it with `markup` and its draft trees with
`step_view` (`scores`, `tree_picture`). Only `page` uses Gradio. May import `dart_jax.programs`,
`dart_jax.model` and what they import. Start with `page.py`.
"""
