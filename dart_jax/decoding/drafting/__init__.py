"""Ways of drafting: what proposes the next draft tree.

One file a way. `dart_jax.decoding.step` knows them by the base class of `dart_jax.decoding.drafting.base` alone;
`drafting_method` finds the one that belongs to a configuration. A new way is a file here and a line there.
"""

from __future__ import annotations

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, Proposal
from dart_jax.decoding.drafting.dart import Dart
from dart_jax.decoding.drafting.draft_model import DraftModel
from dart_jax.decoding.drafting.eagle3 import Eagle3
from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree
from dart_jax.decoding.drafting.ngram import Ngram, NgramConfig
from dart_jax.decoding.drafting.prompt_lookup import PromptLookup, PromptLookupConfig
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config

__all__ = [
    "AnyDrafter",
    "DraftInput",
    "DraftingMethod",
    "NgramConfig",
    "PromptLookupConfig",
    "Proposal",
    "drafting_method",
]

# What tells how drafts are made; a small model of the target's kind drafts token by token.
AnyDrafter = DrafterConfig | Eagle3Config | TargetConfig | PromptLookupConfig | NgramConfig


def drafting_method(
    drafter: AnyDrafter, nodes: int, candidates: int, eagle: Eagle3Tree
) -> DraftingMethod:
    """The way of drafting.

    Args:
      drafter: tells which.
      nodes: tree nodes without the root, N.
      candidates: a DART drafter's most likely tokens handed to the search at each position.
      eagle: how an EAGLE-3 drafter grows its trees.
    """
    match drafter:
        case DrafterConfig():
            return Dart(drafter, nodes, candidates)
        case Eagle3Config():
            return Eagle3(drafter, nodes, eagle)
        case TargetConfig():
            return DraftModel(drafter, nodes)
        case PromptLookupConfig():
            return PromptLookup(drafter, nodes)
        case NgramConfig():
            return Ngram(drafter, nodes)
