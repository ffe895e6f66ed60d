"""Generation of text: options, results, and the way from prompts to pieces of text.

May import `dart_jax.engine` and what it imports. Start with `config.py` (the options) and
`results.py`, then `text_generation.py` (from tokens to text); `dart_jax.model` puts them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dart_jax.generation.config import GenerationConfig, GenerationOptions

if TYPE_CHECKING:
    from dart_jax.generation.results import Completion, GeneratedText, Piece, Step
    from dart_jax.generation.text_generation import TextGeneration

__all__ = [
    "Completion",
    "GeneratedText",
    "GenerationConfig",
    "GenerationOptions",
    "Piece",
    "Step",
    "TextGeneration",
]


def __getattr__(name: str):
    """Imports the results on first use: options alone need no JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = "text_generation" if name == "TextGeneration" else "results"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
