"""Figures of eval.speedup, and the tables of all settings."""

import numpy as np
import pytest

from eval.benchmarks.prompts import Prompt
from eval.methods.measure import Summary
from eval.methods.registry import Tree
from eval.speedup import tables
from eval.speedup.tables import Setting, Workload

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
def test_the_figure(repeats, tmp_path):
    """Bars of the first batch size, with the range of several repeats; lines by position."""
    some = [setting(repeats), setting(repeats, batch_size=4)]
    drawn = tables.draw_figure(some)
    bars, lines = drawn.axes
    assert [bar.get_height() for bar in bars.patches] == pytest.approx(
        [summary.speedup for name in METHODS[1:] for summary in [some[0].all[name]] * 3]
    )
    drawn_errors = [each for each in bars.containers if hasattr(each, "has_yerr")]
    assert len(drawn_errors) == 2 * (repeats > 1)
    assert [tuple(line.get_ydata()) for line in lines.get_lines()] == [(5 / 6, 3 / 6)] * 2
    told = "range of 3 repeats" if repeats > 1 else "1 repeat: none"
    assert told in drawn.get_supxlabel()
    tables.write_figure(tmp_path / "a.svg", some)
    assert "<svg" in (tmp_path / "a.svg").read_text()


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
