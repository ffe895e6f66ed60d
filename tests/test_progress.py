"""Progress bars: lines in a log, where no bar can be drawn."""

import io
import re
import time

import pytest
from rich.console import Console

from dart_jax import progress
from dart_jax.progress import progress_bars, stage, tracked


def lines_of(capsys):
    """The lines of a log, without their times."""
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    return [line[9:] for line in lines]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_tells_each_description_once_and_a_terminal_shows_a_bar(terminal, capsys):
    screen = io.StringIO()
    with progress_bars(Console(file=screen, force_terminal=terminal)) as bars:
        task = bars.add_task("first", total=2)
        bars.advance(task)
        bars.update(task, description="second")
        bars.refresh()
        bars.remove_task(task)
    assert ("second" in screen.getvalue()) == terminal
    assert lines_of(capsys) == ([] if terminal else ["first", "second"])


def test_a_log_tells_how_far_work_is_now_and_then_and_at_the_end(monkeypatch, capsys):
    monkeypatch.setattr(progress, "INTERVAL", 1.0)
    with progress_bars() as bars:
        task = bars.add_task("count", total=8, completed=2, note="")
        bars.update(task, completed=3, note="3 units")
        time.sleep(1.2)
        bars.update(task, completed=4, note="4 units")
        bars.update(task, completed=8, note="8 units")
        bars.update(task, completed=8)
    first, half, end = lines_of(capsys)
    assert first == "count"
    assert re.fullmatch(r"count: 50 %, 4 units, 0:00:0\d so far, 0:00:0\d left", half)
    assert re.fullmatch(r"count: 100 %, 8 units, in 0:00:0\d", end)


def test_stages_and_tracked_items_are_told(capsys):
    with stage("loading") as describe:
        describe("compiling")
    assert list(tracked("abc", "letters", Console(file=io.StringIO()))) == ["a", "b", "c"]
    assert lines_of(capsys) == ["loading", "compiling", "letters"]
