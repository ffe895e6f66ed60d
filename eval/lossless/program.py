"""Check that drafting leaves the target's output unchanged, token for token and in distribution.

    python -m eval.lossless
    python -m eval.lossless --method all

Decodes the same prompts with and without drafts, with the same seeds, in every combination of
temperature, filters, batch size and tree size. The first difference of two outputs is
examined: it is either a tie within rounding or two different distributions. Then many short samples
are compared with the target's exact probabilities. Exit status 1 if anything differs beyond
rounding.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment, write_report
from eval.lossless import tables
from eval.lossless.check import Lossless
from eval.lossless.config import LosslessConfig
from eval.methods.registry import METHODS


def run(config: LosslessConfig, console: Console) -> bool:
    """Checks, prints and writes the report; returns whether nothing differs beyond rounding."""
    check_outputs(config.json)
    lossless = Lossless(config, console)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    for reason in lossless.left_out:
        console.print(f"left out: {reason}")
    outcomes = list(lossless.compare())
    output: list[Table] = []
    for name in lossless.methods:
        of_method = [outcome for outcome in outcomes if outcome.case.method == name]
        sizes = ", ".join(dict.fromkeys(str(outcome.case.nodes) for outcome in of_method))
        title = f"{METHODS[name].title} against plain decoding: trees of {sizes} nodes"
        output.append(tables.equality_table(title, of_method))
    if any(outcome.divergences for outcome in outcomes):
        output.append(tables.divergence_table(outcomes, lossless.tokenizer))
    console.print(*output)
    fits = lossless.fit()
    if fits:
        output.append(tables.fit_table(fits))
        console.print(output[-1])
    passed, verdict = tables.verdict(outcomes, fits)
    settings = [
        {
            **dataclasses.asdict(outcome.case),
            **dataclasses.asdict(outcome),
            "tau": outcome.tau,
            "divergences": [
                {**dataclasses.asdict(each), "verdict": each.verdict}
                for each in outcome.divergences
            ],
        }
        for outcome in outcomes
    ]
    distribution = [
        {"sampling": dataclasses.asdict(how), **dataclasses.asdict(fit), "p": fit.p}
        for how, fit in fits.items()
    ]
    title = f"Drafted and plain texts of {config.title}"
    write_report(
        config,
        title,
        output,
        note=verdict,
        lossless=passed,
        settings=settings,
        distribution=distribution,
    )
    console.print(verdict, soft_wrap=True)
    return passed


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: not lossless; 2: bad input, reported in one line."""
    with program():
        if not run(parse(LosslessConfig, args, __doc__), Console()):
            sys.exit(1)
