"""The style of figures."""

import pytest
from figure_checks import check_style, ends_of, note_of

from dart_jax.programs.figures import Spread, error_bars, new_panels, note, told

VALUES = [1.0, 2.0, 4.0, 9.0, 3.0]


def test_error_bars():
    """From the least to the greatest value; none for a single one."""
    for rows, expected in (([VALUES, [1.0], VALUES], 2), ([[1.0]], 0)):
        _, (axes,) = new_panels(1, columns=1)
        error_bars(axes, range(len(rows)), [Spread.range(values) for values in rows])
        assert len(ends_of(axes)) == expected
    assert Spread.range(VALUES) == (1, 9)


def test_the_note_tells_what_error_bars_are():
    assert told("range", 3) == "range of 3 repeats"
    assert told("standard deviation", 1, "seed") == "1 seed: no error bars"
    figure, _ = new_panels(1, columns=1)
    note(figure, "1 repeat")
    assert note_of(figure) == "1 repeat"


@pytest.mark.parametrize(("number", "columns"), [(1, 2), (3, 2), (5, 3), (7, 3)])
def test_panels_leave_no_room_empty(number, columns):
    figure, panels = new_panels(number, columns)
    assert len(panels) == number
    for axes in panels:
        axes.plot([0, 1], [0, 1])
    note(figure, "no error bars")
    check_style(figure)
    rows = [axes.get_subplotspec().rowspan.start for axes in panels]
    assert max(map(rows.count, rows)) <= columns
