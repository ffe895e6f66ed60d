"""The web app: a chat that shows drafting as it happens. `python -m dart_jax.app` starts it.

`page` generates an answer step by step, and draws it with `answer`, its draft trees with
`step_view` (`scores`, `tree_picture`), and the speeds with and without drafting with `race`; all
texts become HTML in `markup` and `answer`. Only `page` uses Gradio. May import
`dart_jax.programs`, `dart_jax.model` and what they import. Start with `page.py`.
"""
