"""Figures of eval.speedup, and the tables of all settings."""

import numpy as np
import pytest
from figure_checks import check_style, ends_of, note_of

from eval.benchmarks.prompts import Prompt
from eval.methods.measure import Summary
from eval.methods.registry import Tree
from eval.speedup import figure, tables
from eval.speedup.measurement import Setting
from eval.speedup.workload import Workload

METHODS = ("plain", "dart", "eagle3")


def setting(repeats, batch_size=1, bench="demo", context=None):
    """A setting whose taus have standard errors if there are several repeats."""
    rows = {}
    for tau, name in enumerate(METHODS, 1):
        speedups = [tau / 2 + 0.1 * repeat for repeat in range(repeats)]
        shares = {"prefill": 0.1, "device": 0.8, "search": 0.1}
        paces = [1 / (100 * speedup) for speedup in speedups]
        error = 0.25 if repeats > 1 else None
        figures = (
            paces,
            speedups,
            tau,
            error,
            0.5,
            4,
            tau,
            8,
            [1, 2, 3],
            shares,
            1e-3 * tau,
            4.0 * (tau > 1),
        )
        rows[name] = Summary(8, [100 * speedup for speedup in speedups], speedups, *figures)
    prompts = [Prompt("text", "", np.zeros(context or 48, np.int32))]
    workload = Workload(bench, bench, "", prompts, 8192, context)
    groups = {"text": rows, "data": rows, "all": rows}
    return Setting(workload, 0.0, batch_size, dict.fromkeys(METHODS, Tree(4)), groups)


@pytest.mark.parametrize("repeats", [1, 3])
def test_error_bars(repeats):
    """Of the range of several repeats, and of tau's standard error; of the first batch size."""
    drawn = figure.draw([setting(repeats), setting(repeats, batch_size=4)])
    check_style(drawn)
    panels = {axes.get_title(): axes for axes in drawn.axes}
    ends = ends_of(panels["Speed-up"])
    assert [upper - lower for lower, upper in ends] == pytest.approx([0.2] * 6 * (repeats > 1))
    errors = [(1.75, 2.25), (2.75, 3.25)] if repeats > 1 else []
    assert ends_of(panels["Tau against step cost"]) == errors
    bars = ["1 repeat: no error bars", "tau, 1 prompt: no error bars"]
    if repeats > 1:
        bars = ["range of 3 repeats", "tau, standard error over prompts"]
    assert all(bar in note_of(drawn) for bar in bars)


def test_lines_by_length():
    """Of tau and the time per token: a point for each length, a line for each method."""
    lengths = (512, 2048)
    settings = [setting(1, 1, bench, each) for each in lengths for bench in ("one", "two")]
    drawn = figure.draw([*settings, setting(1, 4, "one", 512)])
    check_style(drawn)
    panels = {axes.get_title(): axes for axes in drawn.axes}
    for title, methods in (("Tau by length of the prompt", 2), ("Time by length", 3)):
        lines = panels[title].get_lines()
        assert [tuple(line.get_xdata()) for line in lines] == [lengths] * methods
    assert [line.get_ydata()[0] for line in lines] == pytest.approx([20, 10, 20 / 3])
    bars = [tick.get_text() for tick in panels["Speed-up"].get_xticklabels()]
    assert bars == ["one", "two"]  # of the first length only


def test_tables_of_all_settings():
    """A row for each setting, then for the mean over the benchmarks at each length."""
    kinds = [("one", 512), ("two", 512), ("one", 2048), ("two", 2048)]
    some = [setting(3, 1, bench, context) for bench, context in kinds]
    rows = [["one", "512"], ["two", "512"], ["one", "2,048"], ["two", "2,048"]]
    rows += [["mean", "512"], ["mean", "2,048"]]
    figures = {
        "tau": ["1.00", "2.00", "3.00"],
        "ms per token, without the prefill": ["16.67", "9.09", "6.25"],
        "speed-up, without the prefill": ["0.60", "1.10", "1.60"],
        "speed-up": ["0.60", "1.10", "1.60"],
    }
    for table, (title, cells) in zip(tables.overview_tables(some), figures.items(), strict=True):
        assert table.title == f"All settings: {title}"
        columns = [[str(cell) for cell in column.cells] for column in table.columns]
        assert [list(row) for row in zip(*columns, strict=True)] == [
            [*row, "0", "1", *cells] for row in rows
        ]
    alone = tables.overview_tables(some[::2])[0]
    assert [str(cell) for cell in alone.columns[0].cells] == ["one", "one"]


def test_what_the_machine_allows():
    plain, *drafts = tables.limits(setting(2), 45_000_000)
    assert plain == "A plain step takes 1.00 ms; its weights, 45 MB, are read at 45.0 GB/s."
    assert [line.partition(":")[0] for line in drafts] == ["DART", "EAGLE-3"]
    assert "4.0 nodes and their draft take 1.00 plain steps, 0.25 each" in drafts[0]
    assert drafts[1].endswith("a step's 3.00 tokens would be 3.00x.")
