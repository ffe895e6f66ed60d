"""The decoding methods that a visitor can choose from; their models share one target."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from dart_jax.decoding.drafting import drafter_title
from dart_jax.model import DartModel
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config

PLAIN, DART, DART_NO_NGRAM = "plain", "dart", "dart_no_ngram"


class Method(NamedTuple):
    """A decoding method.

    Attributes:
      title: its name on the page.
      model: the model that decodes.
    """

    title: str
    model: DartModel


def methods(base: DartModel, eagle3: str | None = None) -> dict[str, Method]:
    """Returns the methods that the parts of a model allow, by key, in the page's order; the first
    one is the default.

    Args:
      base: the target with the main drafter and n-gram model.
      eagle3: directory or hub repository of an additional EAGLE-3 drafter.

    Raises:
      UserError: as `DartModel.with_drafter`.
    """
    available: dict[str, Method] = {}
    match base.drafter:
        case DrafterConfig():
            title = drafter_title(base.drafter)
            available[DART] = Method(title, base)
            if base.ngram is not None:
                without = dataclasses.replace(base, ngram=None)
                available[DART_NO_NGRAM] = Method(f"{title} without n-gram", without)
        case TargetConfig():
            available["draft_model"] = Method("draft model", base)
        case Eagle3Config():
            available["eagle3"] = Method("EAGLE-3", base)
        case None:
            pass
        case _:
            available["ngram"] = Method("n-gram model alone", base)
    if eagle3 is not None:
        available["eagle3"] = Method("EAGLE-3", base.with_drafter(eagle3))
    return available | {PLAIN: Method("plain decoding", base.with_drafter(None))}
