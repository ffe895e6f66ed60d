"""Figures of eval.speedup."""

import pytest
from figure_checks import check_style, ends_of, note_of

from eval.methods.measure import Summary
from eval.methods.registry import Tree
from eval.speedup import figure
from eval.speedup.measurement import Setting
from eval.speedup.workload import Workload

METHODS = ("plain", "dart", "eagle3")


def setting(repeats, batch_size=1):
    """A setting whose taus have standard errors if there are several repeats."""
    rows = {}
    for tau, name in enumerate(METHODS, 1):
        speedups = [tau / 2 + 0.1 * repeat for repeat in range(repeats)]
        shares = {"prefill": 0.1, "device": 0.8, "search": 0.1}
        figures = tau, 0.25 if repeats > 1 else None, 0.5, 4, tau, 8, [1, 2, 3], shares, 1e-3 * tau
        rows[name] = Summary(8, [100 * speedup for speedup in speedups], speedups, *figures)
    workload = Workload("demo", "demo", "", [], 64)
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
