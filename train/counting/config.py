"""The options of counting."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least


@dataclasses.dataclass(frozen=True)
class NgramConfig:
    """Count a corpus."""

    data: tuple[str, ...]
    """Files, directories or globs (quoted; ** for any depth)."""
    tokenizer: str
    """The target's directory, a tokenizer.json, or a repository of the Hugging Face hub."""
    out: Path
    """The file to write."""
    field: str | None = None
    """Field or column with the text or the chat; by default as for `train-drafter`."""
    chat_template_kwargs: str = '{"enable_thinking": false}'
    """Options for the tokenizer's chat template, as JSON."""
    no_eos: bool = False
    """Do not end documents with the end-of-sequence token."""
    eos_token: str | None = None
    """The end-of-sequence token, if the tokenizer names none or another."""
    order: int = 3
    """Tokens in the longest n-grams, 2 to 5."""
    limit: int | None = None
    """Maximum number of documents to read; each piece of a long one counts."""
    skip_bad: bool = False
    """Skip and count records that cannot be used, instead of stopping at the first."""
    workers: int | None = None
    """Worker processes; by default one per core, as far as memory allows."""
    memory: str | None = None
    """Memory for all processes together, such as 4GB or 800MB; by default half of the machine's."""
    work: Path | None = None
    """Directory for intermediate results; by default next to the output."""
    keep_work: bool = False
    """Keep the work directory at the end."""

    def __post_init__(self) -> None:
        if not 2 <= self.order <= 5:
            raise UserError(f"--order must be 2 to 5, got {self.order}")
        check_least(self, limit=1, workers=1)
