"""Figures of eval.speedup."""

import numpy as np
import pytest
from figure_checks import check_style, ends_of, note_of

from eval.methods.measure import Summary, ratio_error
from eval.methods.tree_size import Tree
from eval.speedup import figure
from eval.speedup.setting import Setting

METHODS = ("plain", "dart", "eagle3")


def summary(repeats, tau, error):
    speedups = [tau / 2 + 0.1 * repeat for repeat in range(repeats)]
    rates = [100 * speedup for speedup in speedups]
    shares = {"prefill": 0.1, "device": 0.8, "search": 0.1}
    lengths = [1, 2, 3]
    taus = (tau, error, tau, 0.5, 4, tau)
    return Summary(8, rates, speedups, speedups, *taus, 8, lengths, shares, 1e-3 * tau)


def setting(repeats, batch_size=1, error=0.25):
    rows = {name: summary(repeats, n + 1.0, error) for n, name in enumerate(METHODS)}
    trees = dict.fromkeys(METHODS, Tree(4))
    groups = {"text": rows, "data": rows, "all": rows}
    return Setting("demo", "demo", "", 0.0, batch_size, 64, trees, groups)


def panels(drawn):
    return {axes.get_title(): axes for axes in drawn.axes}


@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(1,), (1, 4)])
def test_speedup_has_an_error_bar_per_repeated_group(repeats, sizes):
    settings = [setting(repeats, size) for size in sizes]
    drawn = figure.draw(settings)
    check_style(drawn)
    found = ends_of(panels(drawn)["Speed-up"])
    assert len(found) == (2 * 3 if repeats > 1 else 0)  # methods, groups
    for lower, upper in found:
        assert upper - lower == pytest.approx(0.1 * (repeats - 1))
    told = f"range of {repeats} repeats" if repeats > 1 else "1 repeat: no error bars"
    assert told in note_of(drawn)
    if len(sizes) > 1:
        found = ends_of(panels(drawn)["Speed-up by batch size"])
        assert len(found) == (2 * len(sizes) if repeats > 1 else 0)


def test_tau_has_its_standard_error():
    drawn = figure.draw([setting(3)])
    assert ends_of(panels(drawn)["Tau against step cost"]) == [(1.75, 2.25), (2.75, 3.25)]
    assert "tau, standard error over prompts" in note_of(drawn)
    drawn = figure.draw([setting(3, error=None)])
    assert ends_of(panels(drawn)["Tau against step cost"]) == []
    assert "tau, 1 prompt: no error bars" in note_of(drawn)


def test_the_standard_error_is_the_ratios():
    """Of equally long prompts it is the mean's; of others, the spread of resampled ratios."""
    taus = [2, 4, 3, 7]
    expected = np.std(taus, ddof=1) / 2
    assert ratio_error([10 * tau for tau in taus], [10] * 4) == pytest.approx(expected)
    assert ratio_error([12, 24, 36], [4, 8, 12]) == 0
    assert ratio_error([5, 0], [2, 0]) is None
    rng = np.random.default_rng(0)
    steps = rng.integers(10, 40, 200)
    emitted = rng.binomial(6, 0.5, 200) * steps // 2 + steps
    picked = rng.integers(0, 200, (4000, 200))
    resampled = emitted[picked].sum(1) / steps[picked].sum(1)
    assert ratio_error([*emitted], [*steps]) == pytest.approx(resampled.std(), rel=0.1)
