"""Time the ways of searching draft trees beside each other.

    python -m eval.search
    python -m eval.search --tree-nodes 8 --batch-size 1 64

What is searched are the candidates of decoding real prompts. Every way is called from a jitted
loop, as decoding calls it, and finds equally good trees, or the program ends.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.engine.decoder import Decoder
from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least, check_some, parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.spread import in_turn, spread
from dart_jax.programs.tables import table
from eval.benchmarks.prompts import PROMPT_TOKENS, demo_prompts

_BATCHES = 64  # searched in one program, so that its start does not count


@dataclasses.dataclass(frozen=True)
class SearchBenchConfig(ModelChoice):
    """The trees to search."""

    tree_nodes: int = 60
    """Nodes of the draft trees, beside the root."""
    batch_size: tuple[int, ...] = (1, 4, 16, 64)
    """Sequences that are searched together."""
    prompts: int = 2
    """Functions for each of the demo's four groups, whose candidates are searched."""
    max_new_tokens: int = 64
    """Tokens to generate for each prompt."""
    repeats: int = 7
    """Measurements of each way, in turn with the others."""
    json: Path | None = None
    """Write the results to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, tree_nodes=1, prompts=1, max_new_tokens=1, repeats=1, batch_size=1)
        check_some(self, "batch_size")


@jax.tree_util.register_pytree_node_class
class _Recorder(HostSearch):
    """A search called through Python, which keeps what it searches."""

    rows: list[np.ndarray]

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        self.rows.extend(np.array(packed))
        return super().__call__(packed)


def record(decoder: Decoder, prompts: Sequence[np.ndarray], max_new_tokens: int) -> np.ndarray:
    """Decodes prompts one by one and returns the host buffers that were searched, int32 [n, width],
    in random order."""
    search = decoder.search
    assert isinstance(search, HostSearch)
    recorder = _Recorder(search.host_buffer, search.nodes, native=False, **search._options)
    recorder.rows = []
    decoder = dataclasses.replace(decoder, search=recorder)
    for prompt in prompts:
        decoder([prompt], max_new_tokens)
    return np.random.default_rng(0).permutation(np.stack(recorder.rows))


def measure(
    searches: Mapping[str, TreeSearch], rows: np.ndarray, size: int, repeats: int
) -> dict[str, list[float]]:
    """Times searches of the same batches.

    Args:
      searches: by name.
      rows: host buffers, int32 [n, width], which are repeated if there are few.
      size: B, rows that are searched together.
      repeats: measurements.

    Returns:
      For each search the seconds of a batch, one value per repeat.

    Raises:
      RuntimeError: two of them found trees with other scores.
    """
    batches = jnp.asarray(np.resize(rows, (_BATCHES, size, rows.shape[1])))
    works = {name: partial(_search_all, search, batches) for name, search in searches.items()}
    sums = {name: float(work()) for name, work in works.items()}
    if not np.allclose([*sums.values()], next(iter(sums.values())), rtol=1e-4):
        raise RuntimeError(f"ways of searching found different trees: {sums}")
    times = in_turn(works, repeats)
    return {name: [value / _BATCHES for value in values] for name, values in times.items()}


@jax.jit
def _search_all(search: TreeSearch, batches: jax.Array) -> jax.Array:
    """Searches all batches, int32 [m, B, width]; returns the sum of all scores, float32."""

    def one(total: jax.Array, batch: jax.Array) -> tuple[jax.Array, None]:
        trees = search.in_program(batch)
        scores = jax.lax.bitcast_convert_type(trees[:, 3], jnp.float32)
        return total + jnp.sum(scores), None

    return jax.lax.scan(one, jnp.float32(0), batches)[0]


def run(config: SearchBenchConfig, console: Console) -> None:
    """Measures, prints and writes the report.

    Raises:
      UserError: the model's drafter is not DART's.
    """
    if config.search != "auto":
        raise UserError("every --search is measured; leave it out")
    check_outputs(config.json)
    decoders, length = {}, PROMPT_TOKENS + config.max_new_tokens
    for way in ("host", "device"):
        model = dataclasses.replace(config, search=way).load()
        decoders[way] = model.decoder(nodes=config.tree_nodes, max_length=length)
    decoder = decoders["host"]
    if not decoder.search or not decoder.config.host_buffer.candidates:
        raise UserError("the search needs a DART drafter; pass one with --drafter")
    prompts = demo_prompts(model.tokenizer, config.prompts)
    rows = record(decoder, [each.tokens for each in prompts], config.max_new_tokens)
    searches = {way: each.search for way, each in decoders.items()}
    seconds = {size: measure(searches, rows, size, config.repeats) for size in config.batch_size}
    cells = []
    for size, times in seconds.items():
        medians = [statistics.median(values) for values in times.values()]
        micro = [spread([1e6 * value for value in values]) for values in times.values()]
        cells.append([str(size), *micro, f"{medians[-1] / medians[0]:.2f}"])
    title = f"Searching trees of {config.tree_nodes} nodes, microseconds a batch"
    names = [*searches]
    printed = table(title, ("batch", *names, f"{names[-1]} / {names[0]}"), cells)
    console.print(printed)
    write_report(config, "Ways of searching draft trees", [printed], seconds=seconds)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(SearchBenchConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
