"""The `convert` command: converts tries of the reference, and makes n-gram files smaller."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.files import check_writable
from dart_jax.memory import parse_memory
from dart_jax.ngram.model import NgramModel, is_ngram_file
from dart_jax.ngram.reference import convert_reference
from dart_jax.text.fingerprint import tokenizer_fingerprint, vocabulary_size
from dart_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class ConvertConfig:
    """Convert a trie of the reference, or make a file smaller."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """Trie of the reference (small.trie, full.trie); or an n-gram file, of which a smaller one is
    made, without rare n-grams and with rounded counts."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """N-gram file to write. While a trie is converted, temporary files of up to one and a half
    times its size are next to it."""
    tokenizer: Path | None = None
    """Directory with the tokenizer.json that a trie was counted with, or one to which all ids in
    the trie mean the same; the n-gram file records its fingerprint."""
    min_counts: tuple[int, ...] = ()
    """Minimum counts for n-grams of 1, 2, .. order tokens; rarer ones are dropped."""
    precision: int | None = None
    """Significant bits per count, 2 to 16; by default counts are exact."""
    memory: str | None = None
    """Memory to use when converting a trie; by default 4GB."""


def convert(config: ConvertConfig, console: Console) -> None:
    """Runs the command.

    Raises:
      UserError: as `convert_reference` and `NgramModel.lossy`, or an option is missing or is not
        for this kind of file.
    """
    if not config.source.is_file():
        raise UserError(f"no file {config.source}")
    check_writable(config.out)
    before = config.source.stat().st_size
    if is_ngram_file(config.source):
        if config.tokenizer is not None or config.memory is not None:
            raise UserError("--tokenizer and --memory are for tries; leave them out")
        if not config.min_counts and config.precision is None:
            raise UserError(
                f"{config.source} is an n-gram file already; give --min-counts or --precision to "
                "make a smaller one"
            )
        model = NgramModel.load(config.source)
        model.lossy(config.out, min_counts=config.min_counts, precision=config.precision)
    else:
        if config.tokenizer is None:
            raise UserError("a trie does not name its tokenizer: give --tokenizer")
        tokenizer = Tokenizer.load(config.tokenizer).backend
        convert_reference(
            config.source,
            config.out,
            vocab_size=vocabulary_size(tokenizer),
            fingerprint=tokenizer_fingerprint(tokenizer),
            min_counts=config.min_counts or None,
            precision=config.precision,
            memory=parse_memory(config.memory or "4GB"),
        )
    sizes = NgramModel.load(config.out).sizes
    after = config.out.stat().st_size
    console.print(
        f"{config.out}: {sum(sizes):,} n-grams, {after:,} bytes "
        f"({after / max(1, sum(sizes)):.2f} per n-gram); {config.source} has {before:,} bytes"
    )
