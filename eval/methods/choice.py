"""Options that choose decoding methods. JAX is imported when models are loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from dart_jax.errors import UserError, meant
from dart_jax.programs.model_choice import ModelChoice

if TYPE_CHECKING:
    from dart_jax.model import DartModel

PLAIN = "plain"
# Kinds of block drafters; with _chain they draft one candidate for each position.
BLOCKS = ("dflash", "dspark", "dflash2", "jetspec")
# What `eval.methods.registry` has.
NAMES = (
    PLAIN, "text", "dart", "dart_alone", "dart_pairs", "dart_no_ngram", "eagle3", "sps", "pld",
    "ngram",
    *BLOCKS, *(f"{kind}_chain" for kind in BLOCKS),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MethodChoice(ModelChoice):
    """The methods, and their parts besides the target, the DART drafter and the n-gram model."""

    method: str | None = None
    """Comma-separated: text (only the text itself drafts), dart, dart_alone (without the text's own
    drafts), dart_pairs (with pair scores), dart_no_ngram, dflash, dspark, dflash2, jetspec, the
    same with _chain (one candidate for each position, no n-gram model: their authors' drafts),
    eagle3, sps (a small draft model), pld (prompt lookup), ngram (only the n-gram model); all uses
    every method whose parts are available. By default dart, or what a target without a drafter has.
    Plain decoding always runs too."""
    block: str | None = None
    """Directory or hub repository of a block drafter, for dflash, dspark, dflash2 or jetspec,
    whichever it is, one a run; by default --drafter's."""
    eagle3: str | None = None
    """Directory or hub repository of an EAGLE-3 drafter, for eagle3."""
    draft_model: str | None = None
    """Directory or hub repository of a small model with the target's vocabulary, for sps."""
    no_coupling: bool = False
    """Draft without the noise of the target's draws, which is known before; matters only with a
    temperature, and never changes the output."""
    seed: int = 0
    """Seed of sampling; the same for all methods."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}")
        _ = self.methods

    @property
    def main_window(self) -> int | None:
        """The window is that of the other drafters where there is no main one."""
        others = self.eagle3 is not None or self.block is not None
        return None if others and self.main_drafter is None else super().main_window

    @property
    def methods(self) -> dict[str, bool]:
        """The requested methods, plain decoding first -> whether each was requested by name; raises
        UserError for an unknown name."""
        method = self.method
        if method is None:
            alone = self.target is not None and self.drafter is None
            method = ("text" if self.ngram is None else "ngram") if alone else "dart"
            method = PLAIN if self.drafter == "none" else method
        names = [name.strip() for name in method.split(",") if name.strip()]
        for name in names:
            if name not in (*NAMES, "all"):
                cure = meant(name, NAMES, f"pass all, or some of {', '.join(NAMES)}")
                raise UserError(f"no method {name!r}; {cure}")
        expanded = (each for name in names for each in (NAMES if name == "all" else [name]))
        methods = dict.fromkeys((PLAIN, *expanded))
        if len(methods) == 1:
            raise UserError(f"no method; pass all, or some of {', '.join(NAMES)}")
        return {name: name in names for name in methods}

    def obstacle(self, model: DartModel) -> str | None:
        """Returns why a method's model cannot do what is measured, if it cannot."""
        return None
