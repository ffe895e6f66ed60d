"""Which model a program of this package takes."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from dart_jax.model import DEMO, DartModel


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """By default the demo model."""

    target: str = str(DEMO / "target")
    """Directory or hub repository of the target, with its tokenizer."""
    drafter: str = str(DEMO / "drafter")
    """Directory or hub repository of a DART or EAGLE-3 drafter, or of a small model of the target's
    vocabulary; the last two need --no-ngram."""
    ngram: str = str(DEMO / "ngram.dng")
    """N-gram model file, ours or a .trie of the reference, or owner/name/file of the hub."""
    no_ngram: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Search by the drafter alone."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and activations; auto is float32 on CPU, else bfloat16."""

    def load(self) -> DartModel:
        """Reads the model; raises UserError as `DartModel.from_pretrained`."""
        return DartModel.from_pretrained(
            self.target,
            self.drafter,
            None if self.no_ngram else self.ngram,
            dtype=None if self.dtype == "auto" else self.dtype,
        )
