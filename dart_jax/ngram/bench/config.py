"""Options of `python -m dart_jax.ngram bench`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dart_jax.model import DEMO


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """Measure building, size, opening, memory and search on real text."""

    data: tuple[Path, ...] = ()
    """Files or directories of text; by default all Python sources of this environment."""
    tokenizer: Path = DEMO / "target"
    """Directory with a tokenizer.json."""
    tokens: int = 100_000_000
    """Maximum number of tokens; one document in fifty is held out for the queries."""
    order: int = 3
    """Tokens in the longest n-grams."""
    memory: str = "600MB"
    """Memory of the process that builds the file."""
    queries: int = 2000
    """Number of timed searches."""
    tree_nodes: int = 60
    """Nodes of a tree, the root not counted."""
    generate: float = 0
    """Also measure a made-up model with this many n-grams and a vocabulary of 151,936. 1.2e9 is the
    size of the published model; it takes 20 GB of disk and a quarter of an hour."""
    work: Path | None = None
    """Directory for all files; by default a temporary one."""
    seed: int = 0
    """Seed of queries and made-up n-grams."""
    engines: bool = False
    """Also time other engines for grouping the windows: numpy, DuckDB, polars (if installed)."""
    json: Path | None = None
    """Write all results to this file."""
