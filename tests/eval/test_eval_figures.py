"""The tables of all settings of eval.speedup, and its figure."""

import dataclasses

import numpy as np

from eval.benchmarks.prompts import Prompt
from eval.methods.measure import Summary
from eval.methods.registry import Tree
from eval.speedup import tables
from eval.speedup.tables import Setting, Workload

METHODS = ("plain", "dart", "eagle3")


def summary(tau):
    """Results of two repeats."""
    speedups = [tau / 2, tau / 2 + 0.2]
    figures = {"speedups": speedups, "tau": tau, "lengths": [1, 2, 3]}
    figures["token_seconds"] = [1 / (100 * speedup) for speedup in speedups]
    figures["decoding_speedups"] = speedups
    fields = [field.name for field in dataclasses.fields(Summary)]
    return Summary(**dict.fromkeys(fields, 0) | figures)


def setting(bench, context):
    rows = {name: summary(tau) for tau, name in enumerate(METHODS, 1)}
    prompts = [Prompt("text", "", np.zeros(context, np.int32))]
    workload = Workload(bench, bench, "", prompts, 8192, context)
    groups = {"text": rows, "data": rows, "all": rows}
    return Setting(workload, 0.0, 1, dict.fromkeys(METHODS, Tree(4)), groups)


def test_tables_of_all_settings(tmp_path):
    """A row for each setting, then for the mean over the benchmarks at each length."""
    kinds = [("one", 512), ("two", 512), ("one", 2048), ("two", 2048)]
    some = [setting(bench, context) for bench, context in kinds]
    rows = [["one", "512"], ["two", "512"], ["one", "2,048"], ["two", "2,048"]]
    rows += [["mean", "512"], ["mean", "2,048"]]
    figures = {
        "tau": ["1.00", "2.00", "3.00"],
        "ms per token, without the prefill": ["17.14", "9.17", "6.27"],
        "speed-up, without the prefill": ["0.60", "1.10", "1.60"],
        "speed-up": ["0.60", "1.10", "1.60"],
    }
    for table, (title, cells) in zip(tables.overview_tables(some), figures.items(), strict=True):
        assert table.title == f"All settings: {title}"
        columns = [[str(cell) for cell in column.cells] for column in table.columns]
        assert [list(row) for row in zip(*columns, strict=True)] == [
            [*row, "0", "1", *cells] for row in rows
        ]
    for count in (1, 2):
        tables.write_figure(tmp_path / "a.svg", some[:count])
        assert "<svg" in (tmp_path / "a.svg").read_text()
