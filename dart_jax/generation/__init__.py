"""Generation of text: options, results, and the way from prompts to pieces of text.

May import `dart_jax.engine` and what it imports. Start with `config.py` (the options) and
`results.py`, then `text_generation.py` (from tokens to text); `dart_jax.model` puts them together.
"""

from __future__ import annotations

from dart_jax.generation.config import GenerationConfig, GenerationOptions
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
