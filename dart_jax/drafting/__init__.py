"""Ways of drafting: what proposes the next draft tree.

One file a way. `dart_jax.step` knows them by the base class of `dart_jax.drafting.base` alone;
`method` finds the one that belongs to a configuration. A new way is a file here and a line there.
"""

from __future__ import annotations

from dart_jax.config import DrafterConfig, Eagle3Config, TargetConfig
from dart_jax.drafting.base import Drafting, Known, Proposal
from dart_jax.drafting.dart import Dart
from dart_jax.drafting.draft_model import DraftModel
from dart_jax.drafting.eagle3 import Eagle3
from dart_jax.drafting.ngram import Ngram, NgramConfig
from dart_jax.drafting.prompt_lookup import PromptLookup, PromptLookupConfig
from dart_jax.eagle3 import Eagle3Tree

__all__ = [
    "AnyDrafter",
    "Drafting",
    "Known",
    "NgramConfig",
    "PromptLookupConfig",
    "Proposal",
    "method",
]

# What tells how drafts are made; a small model of the target's kind drafts token by token.
AnyDrafter = DrafterConfig | Eagle3Config | TargetConfig | PromptLookupConfig | NgramConfig


def method(drafter: AnyDrafter, nodes: int, candidates: int, eagle: Eagle3Tree) -> Drafting:
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
