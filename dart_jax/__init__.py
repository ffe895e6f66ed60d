"""DART speculative decoding (arXiv 2601.19278) in JAX.

A one-layer drafter predicts several positions in one forward pass, a C++ n-gram tree search prunes
them to a small draft tree, and the target verifies the whole tree at once.

    from dart_jax import DartModel

    print(DartModel.demo().generate("def mean(values):").text)

Start with `model.py`, which loads a model from its parts. `docs/architecture.md` lists the packages
and draws what each may import. None imports `train` or `eval`.

Names exported here are imported lazily, on first use.
"""

from dart_jax.xla_log import quiet_xla

quiet_xla()

__version__ = "0.1.0"

# Name -> the module that defines it.
_EXPORTS = {
    "Completion": "dart_jax.generation",
    "DartModel": "dart_jax.model",
    "GenerationConfig": "dart_jax.generation",
    "LogitsProcessor": "dart_jax.decoding.options",
    "NgramConfig": "dart_jax.decoding.drafting",
    "Piece": "dart_jax.generation",
    "PromptLookupConfig": "dart_jax.decoding.drafting",
    "SearchConfig": "dart_jax.decoding.search.config",
    "TextGeneration": "dart_jax.generation",
    "UserError": "dart_jax.errors",
}

__all__ = [
    "Completion",
    "DartModel",
    "GenerationConfig",
    "LogitsProcessor",
    "NgramConfig",
    "Piece",
    "PromptLookupConfig",
    "SearchConfig",
    "TextGeneration",
    "UserError",
    "__version__",
]

TYPE_CHECKING = False  # importing it from `typing` would double the time of this import
if TYPE_CHECKING:
    from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
    from dart_jax.decoding.options import LogitsProcessor
    from dart_jax.decoding.search.config import SearchConfig
    from dart_jax.errors import UserError
    from dart_jax.generation import Completion, GenerationConfig, Piece, TextGeneration
    from dart_jax.model import DartModel


def __getattr__(name: str):
    """Imports an exported name on first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
