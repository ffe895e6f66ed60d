"""The `convert` command: converts tries of the reference, makes n-gram files smaller, and records
other tokenizers in them."""

from __future__ import annotations

import dataclasses
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.files import check_writable
from dart_jax.memory import parse_memory
from dart_jax.ngram.builder import writing
from dart_jax.ngram.model import NgramModel, is_ngram_file
from dart_jax.ngram.reference import convert_reference
from dart_jax.text.fingerprint import extends, tokenizer_fingerprint, vocabulary_size
from dart_jax.text.tokenizer import Tokenizer

# Where the header of a file has them: see docs/ngram-format.md.
_FINGERPRINT, _CHECKSUM = 168, 264


@dataclasses.dataclass(frozen=True)
class ConvertConfig:
    """Convert a trie of the reference (small.trie, full.trie) to an n-gram file; or make an n-gram
    file smaller, by dropping rare n-grams and rounding counts, or record another tokenizer in it,
    to which all of its ids mean the same."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """Trie, or n-gram file."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """N-gram file to write."""
    tokenizer: Path | None = None
    """Directory with the tokenizer.json that a trie was counted with, or that a copy of an n-gram
    file is for; the file then records its fingerprint. Without it, a trie needs --vocab-size."""
    counted_with: Path | None = None
    """Directory with the tokenizer.json that the n-gram file was counted with; all ids that occur
    must mean the same to --tokenizer."""
    vocab_size: int | None = None
    """Number of tokens of that tokenizer."""
    min_counts: tuple[int, ...] = ()
    """Minimum counts for n-grams of 1, 2, .. order tokens; rarer ones are dropped."""
    precision: int | None = None
    """Significant bits per count, 2 to 16; by default counts are exact."""
    memory: str = "4GB"
    """Memory to use when converting a trie."""
    work: Path | None = None
    """Directory for temporary files of up to one and a half times the trie; by default next to
    the output."""


def convert(config: ConvertConfig, console: Console) -> None:
    """Runs the command.

    Raises:
      UserError: as `convert_reference`, `NgramModel.lossy` and `stamp`.
    """
    if not config.source.is_file():
        raise UserError(f"no file {config.source}")
    check_writable(config.out)
    before = config.source.stat().st_size
    if is_ngram_file(config.source):
        _convert_ngram_file(config)
    elif config.counted_with is not None:
        raise UserError("--counted-with is for n-gram files; for a trie, give that as --tokenizer")
    else:
        if config.tokenizer is not None:
            tokenizer = Tokenizer.load(config.tokenizer).backend
            vocab_size = vocabulary_size(tokenizer)
            fingerprint = tokenizer_fingerprint(tokenizer)
        elif config.vocab_size is not None:
            vocab_size, fingerprint = config.vocab_size, bytes(32)
            if not 1 <= vocab_size <= _core.MAX_VOCABULARY:
                raise UserError(f"--vocab-size must be 1 to {_core.MAX_VOCABULARY}")
        else:
            raise UserError("a trie does not name its tokenizer: give --tokenizer or --vocab-size")
        convert_reference(
            config.source,
            config.out,
            vocab_size=vocab_size,
            fingerprint=fingerprint,
            min_counts=config.min_counts or None,
            precision=config.precision,
            memory=parse_memory(config.memory),
            scratch=config.work,
        )
    sizes = NgramModel.load(config.out).sizes
    after = config.out.stat().st_size
    console.print(
        f"{config.out}: {sum(sizes):,} n-grams, {after:,} bytes "
        f"({after / max(1, sum(sizes)):.2f} per n-gram); {config.source} has {before:,} bytes"
    )


def _convert_ngram_file(config: ConvertConfig) -> None:
    """Makes an n-gram file smaller, or records another tokenizer in it, or both."""
    smaller = bool(config.min_counts) or config.precision is not None
    if (config.tokenizer is None) != (config.counted_with is None):
        raise UserError(
            "give both --tokenizer and --counted-with to record another tokenizer in a copy"
        )
    if config.tokenizer is None and not smaller:
        raise UserError(
            f"{config.source} is an n-gram file already; give --min-counts or --precision to make "
            "a smaller one, or --tokenizer and --counted-with to record another tokenizer in a copy"
        )
    with tempfile.TemporaryDirectory(dir=config.out.parent) as work:
        source = config.source
        if config.tokenizer is not None and config.counted_with is not None:
            copy = Path(work) / "copy" if smaller else config.out
            stamp(source, copy, config.tokenizer, config.counted_with)
            source = copy
        if smaller:
            model = NgramModel.load(source)
            model.lossy(config.out, min_counts=config.min_counts, precision=config.precision)


def stamp(source: Path, out: Path, tokenizer: Path, counted_with: Path) -> None:
    """Copies an n-gram file with the fingerprint of another tokenizer.

    Args:
      source: the file.
      out: the copy; not the file itself.
      tokenizer: directory of the other tokenizer.
      counted_with: directory of the one that the file was counted with.

    Raises:
      UserError: an id that occurs is another token, or none, to the other tokenizer; or the file
        was not counted with `counted_with`.
    """
    model, other, own = NgramModel.load(source), *map(Tokenizer.load, (tokenizer, counted_with))
    if not extends(own, model.fingerprint):
        raise UserError(f"{source} was not counted with the tokenizer of {counted_with}; give that")
    ours, theirs = ({id: name for name, id in each.get_vocab().items()} for each in (own, other))
    for id in model.unigrams.nonzero()[0].tolist():
        if id not in theirs or ours.get(id) != theirs[id]:
            raise UserError(
                f"the token id {id} occurs in {source}, as {ours.get(id)!r}, but is "
                f"{theirs.get(id)!r} in {tokenizer}; count one with that tokenizer"
            )
    with writing(out) as part:
        shutil.copyfile(source, part)
        with part.open("r+b") as file:
            header = bytearray(file.read(_CHECKSUM))
            fingerprint = tokenizer_fingerprint(other)
            header[_FINGERPRINT : _FINGERPRINT + len(fingerprint)] = fingerprint
            file.seek(0)
            file.write(bytes(header) + struct.pack("<Q", _core.xxh64(bytes(header))))
