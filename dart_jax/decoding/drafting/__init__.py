"""Drafting methods: each proposes the next draft tree.

One file per method. `dart_jax.decoding.step` depends only on the base class `DraftingMethod` in
`base.py`; `drafting_method` selects the method for a config. To add one, add a file here and, if it
has parameters, a case to `drafting_method`. May import `dart_jax.models`, and `sampling` and `tree`
of `dart_jax.decoding`. Start with `base.py`, then `dart.py`; `prompt_lookup.py` is the smallest
complete method.
"""

from __future__ import annotations

from dart_jax.decoding.drafting.base import (
    Candidates,
    DraftingMethod,
    DraftInput,
    MethodConfig,
    PromptRows,
    Proposal,
)
from dart_jax.decoding.drafting.block import Block
from dart_jax.decoding.drafting.dart import Dart
from dart_jax.decoding.drafting.draft_model import DraftModel
from dart_jax.decoding.drafting.eagle3 import Eagle3, Eagle3Tree
from dart_jax.decoding.drafting.ngram import NgramConfig
from dart_jax.decoding.drafting.prompt_lookup import PromptLookupConfig
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import (
    AnyDrafterConfig,
    BlockConfig,
    DartConfig,
    Eagle3Config,
)

__all__ = [
    "AnyDrafter",
    "Candidates",
    "DraftInput",
    "DraftingMethod",
    "MethodConfig",
    "NgramConfig",
    "PromptLookupConfig",
    "PromptRows",
    "Proposal",
    "drafter_title",
    "drafting_method",
]

# Config that selects the drafting method; a `TargetConfig` is a small model of the target's kind,
# which drafts token by token.
AnyDrafter = AnyDrafterConfig | TargetConfig | MethodConfig


def drafting_method(
    drafter: AnyDrafter, nodes: int, candidates: int, eagle: Eagle3Tree
) -> DraftingMethod:
    """Returns the drafting method for a config, with trees of N nodes; see `DecodeConfig` for
    `candidates` and `eagle`."""
    match drafter:
        case DartConfig():
            return Dart(drafter, nodes, candidates)
        case BlockConfig():
            return Block(drafter, nodes, candidates)
        case Eagle3Config():
            return Eagle3(drafter, nodes, eagle)
        case TargetConfig():
            return DraftModel(drafter, nodes)
        case MethodConfig():
            return drafter.method(nodes)


def drafter_title(drafter: AnyDrafter | None, *, text: bool = False) -> str:
    """Returns the name of a drafting method, for people, with or without the text's own drafts."""
    titles = [] if drafter is None else [drafter.traits.title]
    return " and ".join([*titles, "the text itself"] if text else titles) or "none"
