"""Time products of a few rows on this CPU: XLA's, and those with weights stored in tiles, as floats
or in GGUF's blocks.

    python -m eval.products
    python -m eval.products --rows 1 9 --shape 1024x1024

Each product reads other weights than the one before, and its input depends on the result of that
one, as in a model's step. All are timed in turn, in one process.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.memory import HugePages
from dart_jax.models.cpu import available
from dart_jax.models.kernels.tiles import BLOCK_TYPES, Tiles, pack, pack_blocks, product, settle
from dart_jax.programs.command_line import check_least, check_some, parse, program
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.spread import in_turn
from dart_jax.programs.tables import table
from dart_jax.progress import tracked

_BYTES = 42_000_000  # of all weights of one shape and type: more than processors' caches hold
_XLA = "XLA"
_MOST_WEIGHTS = 128  # of one jitted program, which takes long to compile

# The demo's projections, each of one or more that read the same input, and its head.
_DEMO = ("320x448", "320x320", "320x1792", "896x320", "320x4096")


@dataclasses.dataclass(frozen=True)
class ProductsConfig:
    """The products to time."""

    rows: tuple[int, ...] = (1, 4, 8, 9, 12, 16, 32, 61, 128, 512)
    """Numbers of rows."""
    shape: tuple[str, ...] = ("1024x1024", "384x1024", "1024x3072", "384x16384", *_DEMO)
    """Shapes of the weights: inputs, x, outputs."""
    repeats: int = 15
    """Measurements of each product, of which the median counts."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        check_least(self, rows=1, repeats=1)
        check_some(self, "rows")
        for shape in self.shape:
            _sizes(shape)


def _sizes(shape: str) -> tuple[int, int]:
    """Reads a shape like 1024x3072; raises UserError if it is none."""
    words = shape.split("x")
    if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--shape must be written like 1024x3072, got {shape!r}")
    return int(words[0]), int(words[1])


def measure(shape: str, rows: int, repeats: int) -> dict[str, list[float]]:
    """Times the products of one shape and number of rows.

    Returns:
      For XLA's product and for each type of weights in tiles the seconds of a product, one value
      per repeat.
    """
    d_in, d_out = _sizes(shape)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(rows, d_in)), jnp.float32)

    def plain() -> jax.Array:
        return jnp.asarray(rng.normal(size=(d_in, d_out)), jnp.float32)

    weights: dict[str, list[Any]] = {_XLA: _enough(plain)}
    for dtype in (jnp.float32, jnp.bfloat16):
        weights[jnp.dtype(dtype).name] = _enough(lambda dtype=dtype: pack(plain(), dtype=dtype))
    for type in sorted(BLOCK_TYPES):
        if d_in % (256 if type.endswith("K") else 32) == 0:
            weights[type] = _enough(partial(_random_blocks, rng, type, d_in, d_out))
    works = {
        name: partial(_chain, jnp.matmul if name == _XLA else product, x, each)
        for name, each in weights.items()
    }
    times = in_turn(works, repeats)
    return {name: [value / len(weights[name]) for value in times[name]] for name in times}


def _enough(make: Callable[[], Any]) -> list[Any]:
    """Makes as many weights as are not kept in caches; tiles where a model has them."""
    memory, made = HugePages(), []
    while not made or (sum(each.nbytes for each in made) < _BYTES and len(made) < _MOST_WEIGHTS):
        one = make()
        made.append(settle(one, memory) if isinstance(one, Tiles) else one)
    return made


def _random_blocks(rng: np.random.Generator, type: str, d_in: int, d_out: int) -> Tiles:
    """A matrix in blocks of a type, whose bytes are such that all of its numbers are finite."""
    inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    rows = rng.integers(0, 0x3C, (d_out, d_in // inputs * size), np.uint8)
    return pack_blocks(type, rows)[0]


@partial(jax.jit, static_argnums=0)
def _chain(
    product: Callable[..., jax.Array], x: jax.Array, weights: list[jax.Array] | list[Tiles]
) -> jax.Array:
    """Multiplies x with all weights, one after another."""
    for each in weights:
        y = product(x, each)
        # Never NaN, but XLA does not know.
        x = x.at[0, 0].add(jnp.isnan(y[0, 0]).astype(x.dtype))
    return x


def run(config: ProductsConfig, console: Console) -> None:
    """Measures, prints and writes the report."""
    check_outputs(config.json)
    if not available():
        raise UserError("weights in tiles need the C++ core, which this jaxlib cannot call")
    by = f"the C++ core ({_core.instructions})"
    cases = [(shape, rows) for shape in config.shape for rows in config.rows]
    times = [measure(*case, config.repeats) for case in tracked(cases, "measuring", console)]
    by_case = dict(zip(cases, times, strict=True))
    tables = [_table(shape, by_case, config.rows, by) for shape in config.shape]
    console.print(*tables)
    measurements = [
        {"shape": shape, "rows": count, **each}
        for (shape, count), each in zip(cases, times, strict=True)
    ]
    title = "Products of a few rows"
    write_report(config, title, tables, products=by, measurements=measurements)


def _table(
    shape: str,
    times: Mapping[tuple[str, int], Mapping[str, Sequence[float]]],
    counts: Sequence[int],
    by: str,
) -> Table:
    """A line for each type of weights of one shape, and a column for each number of rows."""
    rows = []
    for name in times[shape, counts[0]]:
        row = [name]
        for count in counts:
            values, xla = times[shape, count][name], times[shape, count][_XLA]
            # Both of one turn: whatever else the machine does slows both down.
            faster = statistics.median(a / b for a, b in zip(xla, values, strict=True))
            ratio = "" if name == _XLA else f" ({faster:.1f}x)"
            row.append(f"{1e6 * statistics.median(values):.1f}{ratio}")
        rows.append(row)
    title = f"{shape}: microseconds of a product (XLA's over it); weights in tiles by {by}"
    return table(title, ("weights", *(f"{count} rows" for count in counts)), rows)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(ProductsConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
