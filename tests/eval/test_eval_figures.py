"""Figures of eval.speedup."""

import pytest
from figure_checks import check_style, ends_of, note_of

from eval.methods.measure import Summary
from eval.methods.tree_size import Tree
from eval.speedup import figure
from eval.speedup.setting import Setting
from eval.speedup.workload import Workload

METHODS = ("plain", "dart", "eagle3")


def summary(repeats, tau, error):
    speedups = [tau / 2 + 0.1 * repeat for repeat in range(repeats)]
    rates = [100 * speedup for speedup in speedups]
    shares = {"prefill": 0.1, "device": 0.8, "search": 0.1}
    lengths = [1, 2, 3]
    return Summary(8, rates, speedups, tau, error, 0.5, 4, tau, 8, lengths, shares, 1e-3 * tau)


def setting(repeats, batch_size=1, error=0.25):
    rows = {name: summary(repeats, n + 1.0, error) for n, name in enumerate(METHODS)}
    trees = dict.fromkeys(METHODS, Tree(4))
    groups = {"text": rows, "data": rows, "all": rows}
    workload = Workload("demo", "demo", "", [], [], 64)
    return Setting(workload, 0.0, batch_size, trees, groups)


def panels(drawn):
    return {axes.get_title(): axes for axes in drawn.axes}


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_speedup_has_an_error_bar_per_repeated_group(repeats):
    drawn = figure.draw([setting(repeats), setting(repeats, batch_size=4)])
    check_style(drawn)
    ends = ends_of(panels(drawn)["Speed-up"])
    assert len(ends) == (2 * 3 if repeats > 1 else 0)  # methods, groups
    for lower, upper in ends:
        assert upper - lower == pytest.approx(0.1 * (repeats - 1))
    bars = f"range of {repeats} repeats" if repeats > 1 else "1 repeat: no error bars"
    assert bars in note_of(drawn)


def test_tau_has_its_standard_error():
    drawn = figure.draw([setting(3)])
    assert ends_of(panels(drawn)["Tau against step cost"]) == [(1.75, 2.25), (2.75, 3.25)]
    assert "tau, standard error over prompts" in note_of(drawn)
    drawn = figure.draw([setting(3, error=None)])
    assert ends_of(panels(drawn)["Tau against step cost"]) == []
    assert "tau, 1 prompt: no error bars" in note_of(drawn)
