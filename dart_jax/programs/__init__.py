"""Shared by the command-line programs of `dart_jax`, `train` and `eval`.

Options that select a model, reports, figures, progress bars and provenance. May import the whole
library. Start with `model_choice.py`.
"""
