"""Code that the command-line programs of `dart_jax`, `train` and `eval` share.

Options that select a model, reports, progress bars and provenance; the program `fetch`,
and the commands of `ngram` that read files. May import `dart_jax.model` and what it imports. Start
with `model_choice.py`.
"""
