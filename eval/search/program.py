"""Time the ways of searching trees beside each other, and show what an n-gram table on the device
takes and gives.

    python -m eval.search
    python -m eval.search --tree-nodes 8 --batch-size 1 64 --shares

What is searched are the candidates of decoding real prompts. Every way is called from a jitted
loop, as decoding calls it, and finds the same trees, or the program ends. Times are per batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.search.choice import TreeSearch, why_not_native
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.errors import UserError
from dart_jax.generation.defaults import default_search
from dart_jax.machine import available_cores
from dart_jax.model import DartModel
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.ngram.device_table import device_table
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs, write_json, write_text
from dart_jax.programs.provenance import environment, revision
from dart_jax.progress import stage
from eval.benchmarks.prompts import demo_prompts
from eval.latency.clock import Times
from eval.latency.report import Grid
from eval.search.drafts import batches, record
from eval.search.sizes import Size, measure_sizes
from eval.search.ways import measure_ways

_PROMPT_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class SearchBenchConfig(ModelChoice):
    """What is searched, how often, and with which tables."""

    tree_nodes: int = 60
    """Nodes of the draft trees, beside the root."""
    batch_size: tuple[int, ...] = (1, 4, 16, 64)
    """Sequences that are searched together."""
    prompts: int = 2
    """Functions for each of the demo's four groups."""
    max_new_tokens: int = 64
    """Tokens to generate for each prompt."""
    shares: tuple[float, ...] = (1.0, 0.5, 0.1, 0.0)
    """Shares of the n-grams, the most frequent ones, to make tables of; none skips this part."""
    seconds: float = 0.5
    """About how long each way is measured in a round."""
    rounds: int = 7
    """How often each way is measured, in turn with the others."""
    seed: int = 0
    """Seed of the order in which candidates are searched."""
    json: Path | None = None
    """Write the results to this file."""
    markdown: Path | None = None
    """Write the tables to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tree_nodes", "prompts", "max_new_tokens", "rounds"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if min(self.batch_size, default=0) < 1:
            raise UserError("--batch-size must be at least 1")
        if not all(0 <= share <= 1 for share in self.shares):
            raise UserError("--shares must be between 0 and 1")
        if self.seconds <= 0:
            raise UserError("--seconds must be above 0")


def ways_of(model: DartModel, buffer: HostBuffer, nodes: int) -> dict[str, TreeSearch]:
    """The searches to compare, by name; the C++ search first on one core, which is the baseline."""
    options: dict[str, Any] = {"eos": model.eos, "search": default_search(model.drafter)}
    on_host = partial(HostSearch, buffer, nodes, ngram=model.ngram, **options)
    table = None
    if model.ngram is not None:
        table = jax.tree.map(jnp.asarray, device_table(model.ngram)[0])
    searches: dict[str, TreeSearch] = {}
    if why_not_native() is None:
        searches |= {"native, 1 core": on_host(threads=1), "native": on_host()}
    searches["callback"] = on_host(native=False)
    searches["device"] = DeviceSearch(buffer, nodes, table=table, **options)
    return searches


def run(config: SearchBenchConfig, console: Console) -> None:
    """Measures, prints and writes the report.

    Raises:
      UserError: the model's drafter is not DART's, or the report cannot be written.
    """
    check_outputs(config.json, config.markdown)
    model = config.load()
    if not isinstance(model.drafter, DrafterConfig):
        raise UserError("the search needs a DART drafter; pass one with --drafter")
    prompts = [
        np.asarray(prompt.tokens)
        for prompt in demo_prompts(model.tokenizer, config.prompts, _PROMPT_TOKENS)
    ]
    length = _PROMPT_TOKENS + config.max_new_tokens
    decoder = model.decoder(nodes=config.tree_nodes, max_length=length)
    found: dict[int, dict[str, Times]] = {}
    with stage("decoding prompts", console) as tell:
        rows = record(decoder, prompts, config.max_new_tokens)
        searches = ways_of(model, decoder.config.host_buffer, config.tree_nodes)
        for size in config.batch_size:
            packed = batches(rows, size, config.seed)
            found[size] = measure_ways(searches, packed, config.seconds, config.rounds, tell)
    tables = [ways_grid(found, config, len(rows))]
    console.print(tables[0].table())
    sizes: list[Size] = []
    if config.shares and model.ngram is not None:
        with stage("tables", console) as tell:
            sizes = list(
                measure_sizes(
                    model,
                    prompts,
                    config.shares,
                    config.tree_nodes,
                    config.max_new_tokens,
                    tell,
                )
            )
        tables.append(sizes_grid(sizes, config, len(prompts)))
        console.print(tables[1].table())
    if config.markdown:
        write_text(config.markdown, "\n".join(table.markdown() for table in tables))
    if config.json:
        content = {
            "environment": environment(),
            "revision": revision(),
            "tree_nodes": config.tree_nodes,
            "ways": {
                size: {
                    name: {"median": times.seconds, "spread": _spread(times)}
                    for name, times in ways.items()
                }
                for size, ways in found.items()
            },
            "sizes": [
                {**size._asdict(), "table": dataclasses.asdict(size.table)} for size in sizes
            ],
        }
        write_json(config.json, content)


def ways_grid(found: dict[int, dict[str, Times]], config: SearchBenchConfig, rows: int) -> Grid:
    """The times of all ways."""
    names = list(next(iter(found.values())))
    table = []
    for size, ways in found.items():
        cells = [f"{1e6 * t.seconds:,.0f} ± {1e6 * _spread(t):,.0f}" for t in ways.values()]
        ratio = ways["device"].seconds / next(iter(ways.values())).seconds
        table.append([f"{size}", *cells, f"{ratio:.2f}"])
    device = jax.devices()[0].device_kind
    title = (
        f"Searching trees of {config.tree_nodes} nodes inside a program, us a batch, "
        f"{device}, {available_cores()} cores"
    )
    caption = (
        f"Candidates of {rows:,} steps. Medians of {config.rounds} rounds with half the distance "
        f"between the quartiles. Last: device over {names[0]}."
    )
    return Grid(title, ["batch", *names, "ratio"], table, caption)


def _spread(times: Times) -> float:
    """Half the distance between the quartiles."""
    lower, upper = times.quartiles
    return (upper - lower) / 2


def sizes_grid(sizes: Sequence[Size], config: SearchBenchConfig, prompts: int) -> Grid:
    """What tables of several sizes take and give."""
    table = [
        [
            f"{size.share:.0%}",
            f"{size.table.ngrams:,}",
            f"{size.table.nbytes / 1e6:.1f}",
            f"{size.table.least}",
            f"{size.tau:.2f}",
            f"{size.identical}/{prompts}",
        ]
        for size in sizes
    ]
    title = f"n-gram tables on the device, trees of {config.tree_nodes} nodes, greedy"
    caption = "least: the smallest count in the table; same: prompts with plain decoding's tokens"
    return Grid(title, ["share", "n-grams", "MB", "least", "tau", "same"], table, caption)


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with program():
        run(parse(SearchBenchConfig, args, __doc__), Console())
