"""The program `eval.speedup`: measures, prints and writes the report."""

from __future__ import annotations

from itertools import product

from rich.console import Console
from rich.table import Table

from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment, write_report
from eval.methods.registry import METHODS
from eval.speedup import tables
from eval.speedup.config import SpeedupConfig
from eval.speedup.measurement import Setting, Speedup


def run(config: SpeedupConfig, console: Console) -> None:
    """Measures, prints and writes the reports."""
    check_outputs(config.json, drawing=config.plot)
    config = config.decided()
    speedup = Speedup(config, console)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    for reason in speedup.left_out:
        console.print(f"left out: {reason}")
    settings: list[Setting] = []
    output: list[Table] = []

    def show(table: Table) -> None:
        console.print(table)
        output.append(table)

    for workload, sampling, size in product(speedup.workloads, config.samplings, config.batch_size):
        setting = speedup.setting(workload, sampling, size)
        settings.append(setting)
        show(tables.speedup_table(title_of(config, setting), setting.groups))
        show(tables.repetition_table(setting.all))
        show(tables.time_table(setting.all))
    if len(settings) > 1:
        for each in tables.overview_tables(settings):
            show(each)
    content = [setting.as_json() for setting in settings]
    title = f"Speed of {config.shape or config.title} by method"
    write_report(config, title, output, dtype=speedup.dtype, settings=content)
    if config.plot:
        tables.write_figure(config.plot, settings)


def title_of(config: SpeedupConfig, setting: Setting) -> str:
    """Returns the title of a setting's table."""
    trees = "; ".join(
        f"{METHODS[name].title} {tree}" for name, tree in setting.trees.items() if tree.nodes
    )
    ngram = "no n-gram model" if config.ngram_model is None else "n-gram model"
    imposed = "" if config.acceptance is None else f", tau {config.acceptance:g} imposed"
    schema = "" if config.json_schema is None else f", texts follow {config.json_schema.name}"
    lengths = setting.workload.prompt_tokens
    least, most = (f"{number:,}" for number in (min(lengths), max(lengths)))
    prompts = f"prompts of {most if least == most else f'{least} to {most}'} tokens"
    weights = "" if config.shape is None else f"random weights in the shape of {config.shape}, "
    return (
        f"{setting.workload.title}: {weights}T = {setting.temperature:g}, batch "
        f"{setting.batch_size}, {prompts}, {config.max_new_tokens} new tokens, {ngram}{imposed}"
        f"{schema} "
        f"({trees})"
    )
