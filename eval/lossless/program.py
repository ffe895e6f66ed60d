"""The program `eval.lossless`: measures, prints and writes the report."""

from __future__ import annotations

import dataclasses

from rich.console import Console
from rich.table import Table

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
