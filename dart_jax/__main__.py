"""Lists the command-line programs: `python -m dart_jax`."""

from __future__ import annotations

import importlib.util

from rich.console import Console
from rich.table import Table

from dart_jax import __version__

# Module -> what the program does. Programs that are not installed are not listed.
PROGRAMS = {
    "dart_jax.generate": "continue a prompt in the terminal, with the demo model or another",
    "dart_jax.app": "the same in a browser",
    "dart_jax.ngram": "inspect, convert and measure n-gram files",
    "eval.speedup": "compare the speed of plain decoding, DART and other methods",
    "eval.lossless": "check that drafting does not change any token",
    "eval.latency": "time every stage of a step against the hardware's limits",
    "eval.loading": "measure the memory and time that loading a checkpoint takes",
    "eval.startup": "measure how long a new process takes to its first text",
    "eval.compare": "show what changed between two reports of eval.speedup",
    "train.regenerate": "let the target write the answers that a drafter is trained on",
    "train.drafter": "train a drafter for a target",
    "train.measure": "compare time and memory of the training objective with its literal form",
    "train.plot": "plot the curves of training runs",
    "train.ngram": "count an n-gram model of a corpus",
    "train.ablate": "repeat the paper's experiments",
    "train.demo": "rebuild the demo model",
}


def main() -> None:
    """Prints the programs that are installed."""
    console = Console(highlight=False)
    console.print(f"dart_jax {__version__}: DART speculative decoding in JAX\n")
    table = Table.grid(padding=(0, 3, 0, 0))
    for module, description in PROGRAMS.items():
        if importlib.util.find_spec(module) is not None:
            table.add_row(f"python -m {module}", description)
    console.print(table)
    console.print(
        "\nEach has --help. To get started: python -m dart_jax.generate 'def mean(values):'",
        markup=False,
    )


if __name__ == "__main__":
    main()
