"""Prints what there is to run: `python -m dart_jax`."""

from __future__ import annotations

import importlib.util

from rich.console import Console
from rich.table import Table

from dart_jax import __version__

# By module: what each program does. Those that are not installed are left out.
PROGRAMS = {
    "dart_jax.generate": "continue a prompt in the terminal, with the demo model or another",
    "dart_jax.app": "the same in a browser",
    "dart_jax.ngram": "look into n-gram files, convert and measure them",
    "eval.speedup": "plain decoding against DART and other methods",
    "eval.lossless": "that drafting leaves every token as it was",
    "eval.latency": "every stage of a step, beside what the hardware could do",
    "eval.loading": "how much memory and time reading a checkpoint takes",
    "eval.startup": "how long a new process takes to its first text",
    "eval.compare": "what changed between two reports of eval.speedup",
    "train.regenerate": "let the target write the answers that a drafter learns from",
    "train.drafter": "train a drafter for a target",
    "train.measure": "time and memory of the training objective, beside its literal form",
    "train.plot": "draw the curves of runs",
    "train.ngram": "count an n-gram model of a corpus",
    "train.ablate": "repeat the paper's experiments",
    "train.demo": "make the demo model anew",
}


def main() -> None:
    """Prints the programs that are installed."""
    console = Console(highlight=False)
    console.print(f"dart_jax {__version__}: DART speculative decoding in JAX\n")
    table = Table.grid(padding=(0, 3, 0, 0))
    for module, what in PROGRAMS.items():
        if importlib.util.find_spec(module) is not None:
            table.add_row(f"python -m {module}", what)
    console.print(table)
    console.print(
        "\nEach has --help. To begin with: python -m dart_jax.generate 'def mean(values):'",
        markup=False,
    )


if __name__ == "__main__":
    main()
