"""Limits of the structures that clients may ask for."""

from __future__ import annotations

import dataclasses

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class GrammarLimits:
    """Limits of a structure.

    Attributes:
      source_bytes: size of what the client wrote.
      seconds: of a core, to compile it.
    """

    source_bytes: int = 64_000
    seconds: float = 5.0

    def check_size(self, kind: str, size: int) -> None:
        """Raises UserError if the schemas or the grammar of a kind have too many bytes."""
        if size > self.source_bytes:
            verb, it = ("have", "them") if kind.endswith("s") else ("has", "it")
            raise UserError(
                f"{kind} {verb} {size:,} bytes, more than the {self.source_bytes:,} of "
                f"--grammar-bytes; shorten {it}"
            )
