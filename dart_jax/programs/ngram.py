"""Commands that inspect and convert n-gram files, of `dart-jax ngram`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError
from dart_jax.named.models import MODELS
from dart_jax.ngram.convert import ConvertConfig, convert
from dart_jax.ngram.device_table import table_bytes
from dart_jax.ngram.fingerprint import check_tokenizer
from dart_jax.ngram.model import NgramModel
from dart_jax.text.fingerprint import UNKNOWN
from dart_jax.text.tokenizer import Tokenizer

_DEMO = MODELS["demo"].directory


@dataclasses.dataclass(frozen=True)
class InfoConfig:
    """Print a summary of a file."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = (
        _DEMO / "ngram.dng"
    )
    """N-gram file."""
    check: bool = False
    """Also read every list, which finds invalid files whose checksums match."""


@dataclasses.dataclass(frozen=True)
class QueryConfig:
    """Print what followed a context, with counts."""

    context: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONTEXT")]
    """Text; its last `order - 1` tokens are used."""
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = (
        _DEMO / "ngram.dng"
    )
    """N-gram file."""
    tokenizer: Path = _DEMO / "target"
    """Directory with the tokenizer.json that the file was counted with."""
    top: int = 20
    """Number of continuations to print."""


def info(config: InfoConfig, console: Console) -> None:
    """Prints the header of a file as a table."""
    model = NgramModel.load(config.file)
    header = model.header
    size = config.file.stat().st_size
    table = Table("n-gram length", "n-grams", "left out", "minimum count", box=box.SIMPLE)
    rows = zip(header["ngrams"], header["dropped"], header["min_count"], strict=True)
    for n, (ngrams, dropped, least) in enumerate(rows, start=1):
        table.add_row(str(n), f"{ngrams:,}", f"{dropped:,}", str(least or "-"))
    precision = header["precision"]
    console.print(f"{config.file}: n-gram file, version {header['version']}, order {model.order}")
    console.print(
        f"counted from {header['tokens']:,} tokens of a vocabulary of {model.vocab_size:,}"
    )
    console.print("counts: " + (f"rounded to {precision} bits" if precision else "exact"))
    has_tokenizer = model.fingerprint != UNKNOWN
    tokenizer = model.fingerprint.hex() if has_tokenizer else "unknown"
    console.print(f"tokenizer: {tokenizer}", highlight=False)
    console.print(table)
    ratio = f", {size / sum(model.sizes):.2f} per n-gram" if any(model.sizes) else ""
    console.print(f"{size:,} bytes{ratio}; checksums match")
    ngrams = sum(model.sizes[1:])
    console.print(f"on a device (--search device): {table_bytes(ngrams) / 1e6:,.1f} MB")
    if config.check:
        try:
            model.check()
        except ValueError as error:
            raise UserError(f"{config.file}: {error}") from error
        console.print("every list is whole")


def query(config: QueryConfig, console: Console) -> None:
    """Prints the continuations of a context, the most likely first."""
    model = NgramModel.load(config.file)
    tokenizer = Tokenizer.load(config.tokenizer).backend
    check_tokenizer(model, tokenizer, str(config.file))
    context = tokenizer.encode(config.context, add_special_tokens=False).ids

    def text(*ids: int) -> str:
        return repr(tokenizer.decode(list(ids), skip_special_tokens=False))

    seen = model.continuations(np.array(context, np.int32))
    if not seen:
        console.print(f"{text(*context[-1:])} was never seen", markup=False)
        return
    tokens = seen[0].token  # all that followed a longer context followed the shortest as well
    shares = model.probabilities(context, tokens)
    title = "after " + ", ".join(f"{text(*each.context)} ({each.count:,}x)" for each in seen)
    table = Table("token", "id", "probability", box=box.SIMPLE)
    for each in seen:
        table.add_column(f"after {text(*each.context)}", justify="right")
    counts = [dict(zip(each.token.tolist(), each.counts.tolist(), strict=True)) for each in seen]
    for place in np.argsort(-shares, kind="stable")[: config.top]:
        token = int(tokens[place])
        cells = [f"{c[token]:,}" if token in c else "-" for c in counts]
        table.add_row(text(token), str(token), f"{shares[place]:.4f}", *cells)
    console.print(title, table, sep="\n", markup=False)
    if len(tokens) > config.top:
        console.print(f"and {len(tokens) - config.top:,} more")


Command = (
    Annotated[ConvertConfig, tyro.conf.subcommand("convert")]
    | Annotated[InfoConfig, tyro.conf.subcommand("info")]
    | Annotated[QueryConfig, tyro.conf.subcommand("query")]
)


def run(config: ConvertConfig | InfoConfig | QueryConfig, console: Console) -> None:
    """Runs a command; raises UserError for bad input."""
    match config:
        case ConvertConfig():
            convert(config, console)
        case InfoConfig():
            info(config, console)
        case QueryConfig():
            query(config, console)
