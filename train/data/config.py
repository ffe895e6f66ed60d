"""Options of training data."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least

LossOn = Literal["assistant", "all"]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The training data."""

    data: tuple[str, ...]
    """Files, directories or globs (quoted; ** for any depth) of chats, completions or texts, or
    data sets of the Hugging Face hub: hub:owner/name or hub:owner/name/path."""
    context: int | None = None
    """Tokens per row; by default the paper's 6400, or all of the target's positions if it has
    fewer. Rows hold several documents. Longer texts are cut into pieces, longer chats are
    truncated."""
    loss_on: LossOn = "assistant"
    """Supervised tokens of a chat or a completion: the assistant's, or all."""
    chat_template_kwargs: str = '{"enable_thinking": false}'
    """Options for the target's chat template, as JSON."""
    limit: int | None = None
    """Maximum number of records to read; each piece of a long text counts."""
    held_out: float = 0.01
    """Records held out for evaluation: a fraction if below 1, else their approximate number."""
    skip_bad: bool = False
    """Skip and count records that cannot be used, instead of stopping at the first."""

    def __post_init__(self) -> None:
        check_least(self, context=2, limit=1)
        if not self.held_out >= 0 or (self.held_out > 1 and self.held_out % 1):
            raise UserError(
                f"--held-out must be a fraction or a number of records, got {self.held_out:g}"
            )
        parse_template_kwargs(self.chat_template_kwargs)


def parse_template_kwargs(text: str) -> dict[str, Any]:
    """Parses the JSON options for a chat template; raises UserError."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise UserError(f"--chat-template-kwargs is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise UserError("--chat-template-kwargs must be a JSON object")
    return options
