"""The style of figures."""

import statistics

import pytest
from figure_checks import check_style, ends_of, note_of

from dart_jax.programs.figures import Spread, error_bars, new_panels, note, told

VALUES = [1.0, 2.0, 4.0, 9.0, 3.0]


def test_spreads():
    assert Spread.range(VALUES) == (1, 9)
    assert Spread.quartiles(VALUES) == (2, 4)
    lower, upper = Spread.deviation(VALUES)
    assert (lower + upper) / 2 == pytest.approx(statistics.fmean(VALUES))
    assert (upper - lower) / 2 == pytest.approx(statistics.stdev(VALUES))


@pytest.mark.parametrize("spread", [Spread.range, Spread.quartiles, Spread.deviation])
def test_a_single_value_has_no_error_bar(spread):
    assert spread([1.0]) is None
    _, (axes,) = new_panels(1, columns=1)
    error_bars(axes, [0, 1, 2], [spread(values) for values in (VALUES, [1.0], VALUES)])
    assert len(ends_of(axes)) == 2
    _, (axes,) = new_panels(1, columns=1)
    error_bars(axes, [0], [spread([1.0])])
    assert ends_of(axes) == []


def test_the_note_tells_what_error_bars_are():
    assert told("range", 3) == "range of 3 repeats"
    assert told("standard deviation", 1, "seed") == "1 seed: no error bars"
    figure, _ = new_panels(1, columns=1)
    note(figure, "1 repeat")
    assert note_of(figure) == "1 repeat"


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("columns", [2, 3])
def test_panels_leave_no_room_empty(number, columns):
    figure, panels = new_panels(number, columns)
    assert len(panels) == number
    for axes in panels:
        axes.plot([0, 1], [0, 1])
    note(figure, "no error bars")
    check_style(figure)
    rows = [axes.get_subplotspec().rowspan.start for axes in panels]
    assert max(map(rows.count, rows)) <= columns
