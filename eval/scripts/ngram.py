"""Measure an n-gram file: its size, and how long opening and searching it take.

    python -m eval.scripts.ngram
    python -m eval.scripts.ngram model.dng --tokenizer path/to/target --data texts/*.txt

The searches are in C++, on one core, of drafts that a drafter could have proposed at random places
of a text. By default these are the held-out modules of the Python library.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console

from dart_jax.data.stdlib import read
from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.search.host import HostSearch
from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.ngram.fingerprint import check_tokenizer
from dart_jax.ngram.model import NgramModel
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.tables import table
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.prompts import held_out_text

POSITIONS, CANDIDATES = 8, 25
_SUCCESSORS = 12  # candidates per position that the model has seen as followers
_REPEATS = 11  # of opening


@dataclasses.dataclass(frozen=True)
class NgramBenchConfig:
    """The file, and the text."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = (
        DEMO / "ngram.dng"
    )
    """N-gram file."""
    tokenizer: Path = DEMO / "target"
    """Directory with the tokenizer.json that the file was counted with."""
    data: tuple[Path, ...] = ()
    """Files of text that the n-grams were not counted from."""
    queries: int = 2000
    """Number of places that are searched."""
    tree_nodes: int = 60
    """Nodes of a tree, the root not counted."""
    json: Path | None = None
    """Write all results to this file."""

    def __post_init__(self) -> None:
        check_least(self, queries=100, tree_nodes=1)


# Of Q places: context int32 [Q, 4], ids int32 [Q, d, k] and logits float32 [Q, d, k], descending.
Drafts = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]


def make_drafts(
    model: NgramModel, tokens: NDArray[np.integer], queries: int, rng: np.random.Generator
) -> Drafts:
    """Makes drafts for random places of a text.

    The candidates of a drafted position are the true next token, ranked higher the nearer the
    position; tokens that the model has seen after the previous token, drawn by frequency; and
    random tokens of the text.
    """
    d, k = POSITIONS, CANDIDATES
    place = rng.integers(CONTEXT, len(tokens) - d - 1, queries)
    context = np.stack([tokens[place - CONTEXT + 1 + i] for i in range(CONTEXT)], axis=1)
    ids = tokens[rng.integers(0, len(tokens), (queries, d, k))].astype(np.int32)
    noise = rng.normal(0, 2, (queries, d, k)) - 1.5 * np.log(np.arange(1, k + 1))
    for query, level in np.ndindex(queries, d):
        before, true = tokens[place[query] + level], tokens[place[query] + level + 1]
        row = ids[query, level]
        if followers := model.continuations(np.array([before], np.int32)):
            counts = followers[0].counts
            places = rng.choice(len(counts), _SUCCESSORS, p=counts / counts.sum())
            row[:_SUCCESSORS] = followers[0].token[places]
        rank = min(rng.geometric(0.7 * 0.85**level), k) - 1
        row[rng.permutation(rank)] = row[:rank]
        row[rank] = true
    logits = -np.sort(-noise, axis=-1)
    return context.astype(np.int32), ids, logits.astype(np.float32)


def search_seconds(model: NgramModel, drafts: Drafts, nodes: int) -> NDArray[np.float64]:
    """Times the search of each draft in C++, on one core: seconds [Q], medians of five passes."""
    search = HostSearch(HostBuffer(POSITIONS, CANDIDATES), nodes, ngram=model, threads=1)
    parts = (part.reshape(len(part), 1, -1).view(np.int32) for part in drafts)
    rows = np.concatenate([*parts], axis=-1)
    seconds = np.empty((6, len(rows)))
    for repeat, query in np.ndindex(seconds.shape):
        began = time.perf_counter()
        search(rows[query])
        seconds[repeat, query] = time.perf_counter() - began
    return np.median(seconds[1:], axis=0)  # the first ones are warm-up


def run(config: NgramBenchConfig, console: Console) -> None:
    """Measures, prints and writes the report.

    Raises:
      UserError: a file is missing or damaged, or there is too little text.
    """
    check_outputs(config.json)
    model = NgramModel.load(config.file)
    tokenizer = Tokenizer.load(config.tokenizer)
    check_tokenizer(model, tokenizer.backend, str(config.file))
    for path in config.data:
        if not path.is_file():
            raise UserError(f"no file {path}")
    text = "\n".join(map(read, config.data)) if config.data else held_out_text()
    tokens = np.array(tokenizer.encode(text), np.int32)
    if len(tokens) < 1000:
        raise UserError("too little text to measure with; name more with --data")
    drafts = make_drafts(model, tokens, config.queries, np.random.default_rng(0))
    opening = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        NgramModel.load(config.file)
        opening.append(time.perf_counter() - began)
    times = search_seconds(model, drafts, config.tree_nodes)
    seconds = {
        "open, including checksums": statistics.median(opening),
        "search, median": float(np.median(times)),
        "search, 99th percentile": float(np.percentile(times, 99)),
    }
    ngrams, size = sum(model.sizes), model.file.nbytes
    rows = [
        ["n-grams", f"{ngrams:,}"],
        ["size", f"{size / 1e6:,.1f} MB, {size / ngrams:.2f} bytes per n-gram"],
        *([name, f"{1e6 * value:,.1f} us"] for name, value in seconds.items()),
    ]
    title = f"{config.file.name}, trees of {config.tree_nodes} nodes at {config.queries:,} places"
    printed = table(title, ("figure", "value"), rows)
    console.print(printed)
    write_report(config, "An n-gram file", [printed], ngrams=ngrams, bytes=size, seconds=seconds)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(NgramBenchConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
