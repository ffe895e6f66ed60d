"""Time products of a few rows on this CPU: XLA's, and those with weights stored in tiles.

    python -m eval.products
    python -m eval.products --rows 1 9 --shape 1024x1024

Each product reads other weights than the one before, and its input depends on the result of that
one, as in a model's step. All are timed in turn, in one process.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.machine import available_cores
from dart_jax.models.cpu import foreign, products, tiles
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import environment
from dart_jax.progress import tracked

# Products of one jitted program, which takes long to compile.
_MOST_WEIGHTS = 128

# The demo's projections, each of one or more that read the same input, and its head.
_DEMO = ("320x448", "320x320", "320x1792", "896x320", "320x4096")


@dataclasses.dataclass(frozen=True)
class ProductsConfig:
    """Which products, and how often."""

    rows: tuple[int, ...] = (1, 4, 8, 9, 12, 16, 32, 61, 128, 512)
    """Numbers of rows."""
    shape: tuple[str, ...] = ("1024x1024", "384x1024", "1024x3072", "384x16384", *_DEMO)
    """Shapes of the weights: inputs, x, outputs."""
    megabytes: int = 42
    """Size of all weights of one shape in float32; more than the processor's caches hold."""
    repeats: int = 15
    """Measurements of each product, of which the median counts."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        for name, least in (("rows", self.rows), ("megabytes", [self.megabytes])):
            if not least or min(least) < 1:
                raise UserError(f"--{name} must be at least 1")
        if self.repeats < 1:
            raise UserError("--repeats must be at least 1")
        for shape in self.shape:
            _sizes(shape)


def _sizes(shape: str) -> tuple[int, int]:
    """Reads a shape like 1024x3072; raises UserError if it is none."""
    words = shape.split("x")
    if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--shape must be written like 1024x3072, got {shape!r}")
    return int(words[0]), int(words[1])


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One shape and number of rows; times in seconds per product, one value per repeat.

    Attributes:
      shape: of the weights, inputs x outputs.
      rows: of the input.
      weights: how many were read in turn.
      xla: XLA's product.
      float32: with float32 weights in tiles.
      bfloat16: with bfloat16 weights in tiles.
      int8: with weights in tiles of 8 bits.
      reading: plainly reading weights in float32, by all cores.
    """

    shape: str
    rows: int
    weights: int
    xla: list[float]
    float32: list[float]
    bfloat16: list[float]
    int8: list[float]
    reading: list[float]


def measure(config: ProductsConfig, shape: str, rows: Sequence[int]) -> list[Measurement]:
    """Times the products of one shape, for each number of rows."""
    d_in, d_out = _sizes(shape)
    number = min(max(config.megabytes * 10**6 // (4 * d_in * d_out), 1), _MOST_WEIGHTS)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(number, d_in, d_out)).astype(np.float32)
    parts = np.array_split(weights.reshape(-1).view(np.int32), available_cores())
    plain = [jnp.asarray(each) for each in weights]
    floats = [tiles.pack(each) for each in plain]
    halves = [each.astype(jnp.bfloat16) for each in floats]
    bytes_ = [tiles.pack_int8(each) for each in plain]
    packed = partial(products.product, d_out=d_out)
    found = []
    for count in rows:
        x = jnp.asarray(rng.normal(size=(count, d_in)), jnp.float32)
        works: dict[str, Callable[[], Any]] = {
            "xla": partial(_chain, jnp.matmul, x, plain),
            "float32": partial(_chain, packed, x, floats),
            "bfloat16": partial(_chain, packed, x, halves),
            "int8": partial(_chain, packed, x, bytes_),
        }
        with ThreadPoolExecutor(len(parts)) as threads:
            works["reading"] = partial(_read, threads, parts)
            times = _interleaved(works, config.repeats)
        each = {name: [value / number for value in values] for name, values in times.items()}
        found.append(Measurement(shape, count, number, **each))
    return found


@partial(jax.jit, static_argnums=0)
def _chain(product: Callable[..., jax.Array], x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """Multiplies x with all weights, one after another."""
    for each in weights:
        y = product(x, each)
        # Never NaN, but XLA does not know.
        x = x.at[0, 0].add(jnp.isnan(y[0, 0]).astype(x.dtype))
    return x


def _read(threads: ThreadPoolExecutor, parts: Sequence[np.ndarray]) -> list[Any]:
    """Reads all parts at the same time."""
    return list(threads.map(np.max, parts))  # of integers, whose order needs no care for NaN


def _interleaved(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Runs all works in turn; returns the seconds of each, without those of its first run."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            jax.block_until_ready(work())
            if repeat > 0:
                times[name].append(time.perf_counter() - start)
    return times


def table(measured: Sequence[Measurement]) -> Table:
    """Shows the measurements of one shape."""
    first = measured[0]
    d_in, d_out = _sizes(first.shape)
    values = d_in * d_out
    reading = statistics.median(chain.from_iterable(each.reading for each in measured))
    shown = Table(
        title=f"{first.shape}, {first.weights} in turn; plain reading "
        f"{4 * values / reading / 1e9:.0f} GB/s, {reading * 1e6:.0f} us",
        title_justify="left",
    )
    shown.add_column("rows", justify="right")
    shown.add_column("XLA us", justify="right")
    for dtype in ("float32", "bfloat16", "int8"):
        for column in (f"{dtype} us", "faster", "GB/s"):
            shown.add_column(column, justify="right")
    for each in measured:
        cells = [str(each.rows), _micro(each.xla)]
        for times, size in ((each.float32, 4), (each.bfloat16, 2), (each.int8, 1)):
            # Both of one turn: whatever else the machine does slows both down.
            ratio = statistics.median(a / b for a, b in zip(each.xla, times, strict=True))
            speed = size * values / statistics.median(times) / 1e9
            cells += [_micro(times), f"{ratio:.2f}x", f"{speed:.1f}"]
        shown.add_row(*cells)
    return shown


def _micro(times: Sequence[float]) -> str:
    return f"{statistics.median(times) * 1e6:.1f}"


def run(config: ProductsConfig, console: Console) -> None:
    """Measures, prints and writes the report."""
    check_outputs(config.json)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    if foreign.available():
        console.print(f"products with tiles by the C++ core: {_core.instructions}")
    else:
        console.print("products with tiles by XLA: the C++ core cannot be called here")
    found: list[Measurement] = []
    for shape in tracked(config.shape, "measuring", console):
        measured = measure(config, shape, config.rows)
        console.print(table(measured))
        found += measured
    if config.json:
        content = {
            "environment": environment(),
            "instructions": _core.instructions if foreign.available() else None,
            "measurements": [dataclasses.asdict(each) for each in found],
        }
        write_json(config.json, content)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(ProductsConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
