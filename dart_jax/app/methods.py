"""The decoding methods that a visitor can choose from; their models share one target."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from dart_jax.decoding.drafting import drafter_title
from dart_jax.model import DartModel
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config

PLAIN, DART, DART_NO_NGRAM, EAGLE3 = "plain", "dart", "dart_no_ngram", "eagle3"


@dataclasses.dataclass(frozen=True)
class Method:
    """A decoding method.

    Attributes:
      title: its name on the page.
      model: the model that decodes.
    """

    title: str
    model: DartModel

    @property
    def drafts(self) -> bool:
        """Whether it drafts at all."""
        return self.model.drafter is not None


class Methods(Mapping[str, Method]):
    """The available methods by key, in the order in which the page lists them."""

    def __init__(self, base: DartModel, eagle3: str | None = None):
        """Finds the methods that the given parts allow.

        Args:
          base: the target with the main drafter and n-gram model.
          eagle3: directory or hub repository of an additional EAGLE-3 drafter.

        Raises:
          UserError: as `DartModel.with_drafter`.
        """
        self.base = base
        self._methods: dict[str, Method] = {}
        match base.drafter:
            case DrafterConfig():
                title = drafter_title(base.drafter)
                self._methods[DART] = Method(title, base)
                if base.ngram is not None:
                    without = dataclasses.replace(base, ngram=None)
                    self._methods[DART_NO_NGRAM] = Method(f"{title} without n-gram", without)
            case TargetConfig():
                self._methods["draft_model"] = Method("draft model", base)
            case None | Eagle3Config():
                pass
            case _:
                self._methods["ngram"] = Method("n-gram model alone", base)
        if eagle3 is not None:
            self._methods[EAGLE3] = Method("EAGLE-3", base.with_drafter(eagle3))
        elif isinstance(base.drafter, Eagle3Config):
            self._methods[EAGLE3] = Method("EAGLE-3", base)
        self._methods[PLAIN] = Method("plain decoding", base.with_drafter(None))

    def __getitem__(self, key: str) -> Method:
        return self._methods[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    @property
    def default(self) -> str:
        """The key of the first method."""
        return next(iter(self))

    @property
    def choices(self) -> list[tuple[str, str]]:
        """Titles and keys, for a Gradio component."""
        return [(method.title, key) for key, method in self.items()]
