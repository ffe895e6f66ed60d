"""Plain decoding against ways of drafting: tokens per second, speed-up, tau, and where time went.

    python -m eval.speedup
    python -m eval.speedup --method all --bench mt_bench,humaneval --data-dir benchmarks

Without arguments it runs the demo model, which comes with the package, on functions of Python
library modules that the model never saw.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from itertools import product
from typing import Any

import tyro
from rich.console import Console

from dart_jax.decoding.decoder import Loop
from dart_jax.errors import UserError, one_line_errors
from dart_jax.programs.outputs import check_outputs, write_json, write_text
from dart_jax.programs.provenance import environment, revision
from eval.methods.measure import Summary
from eval.methods.registry import METHODS
from eval.methods.tree_size import Tree
from eval.speedup import figure, tables
from eval.speedup.config import SpeedupConfig
from eval.speedup.measurement import Speedup
from eval.speedup.setting import Setting


def run(config: SpeedupConfig, console: Console) -> None:
    """Measures and reports."""
    check_outputs(config.json, config.markdown, drawing=config.plot)
    speedup = Speedup(config, console)
    if config.sweep and "dart" not in speedup.models:
        raise UserError("--sweep is of DART's trees; add dart to --method")
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    for reason in speedup.left_out:
        console.print(f"left out: {reason}")
    settings = []
    for bench, sampling, size in product(speedup.benches, config.samplings, config.batch_size):
        setting = speedup.setting(bench, sampling, size)
        settings.append(setting)
        console.print(tables.speedup_table(title_of(config, setting), setting.groups))
        console.print(tables.time_table(setting.all))
    swept = speedup.sweep(settings[0].trees["dart"]) if config.sweep else []
    if swept:
        console.print(tables.sweep_table(swept))
    if len(settings) > 1:
        console.print(tables.overview_table(settings))
    if config.json:
        write_json(config.json, as_json(config, speedup.dtype, settings, swept))
    if config.markdown:
        write_text(config.markdown, tables.markdown(config.target or "", settings))
    if config.plot:
        figure.write(config.plot, settings)


def title_of(config: SpeedupConfig, setting: Setting) -> str:
    """What a table is of."""
    trees = "; ".join(
        f"{METHODS[name].title} {tree}" for name, tree in setting.trees.items() if tree.nodes
    )
    ngram = "no n-gram model" if config.ngram_model is None else "n-gram model"
    imposed = "" if config.acceptance is None else f", tau {config.acceptance:g} imposed"
    weights = "" if config.shape is None else f"random weights in the shape of {config.shape}, "
    return (
        f"{setting.title}: {weights}T = {setting.temperature:g}, batch {setting.batch_size}, "
        f"{config.max_new_tokens} new tokens, {ngram}, {config.loop} loop{imposed} ({trees})"
    )


def as_json(
    config: SpeedupConfig,
    dtype: str,
    settings: list[Setting],
    swept: list[tuple[Tree, bool, Loop, Summary]],
) -> dict[str, Any]:
    """Everything that was measured, and what is needed to measure it again."""
    return {
        "environment": environment(),
        "revision": revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "dtype": dtype,
        "config": dataclasses.asdict(config),
        "settings": [
            {
                "bench": setting.bench,
                "source": setting.source,
                "temperature": setting.temperature,
                "batch_size": setting.batch_size,
                "max_length": setting.max_length,
                "trees": {name: tree._asdict() for name, tree in setting.trees.items()},
                "step_costs": setting.step_costs,
                "groups": {
                    group: {name: row.as_json() for name, row in rows.items()}
                    for group, rows in setting.groups.items()
                },
            }
            for setting in settings
        ],
        "sweep": [
            {**tree._asdict(), "ngram": used, "loop": loop, **row.as_json()}
            for tree, used, loop, row in swept
        ],
    }


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with one_line_errors():
        run(tyro.cli(SpeedupConfig, args=args, description=__doc__), Console())
