"""Limits of the structures that clients may ask for."""

from __future__ import annotations

import dataclasses
import json

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs


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


def source_size(outputs: StructuredOutputs) -> int:
    """Returns the number of bytes of a structure, a schema's as JSON.

    Raises:
      UserError: it is nested too deep to be written.
    """
    given = outputs.json or outputs.regex or outputs.choice or outputs.grammar or ""
    try:
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    except RecursionError:
        raise UserError(f"{outputs.kind} is nested too deep; make it flatter") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{outputs.kind} cannot be used: {error}") from None
    return len(text.encode(errors="replace"))
