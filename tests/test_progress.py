"""Progress bars: lines in a log, where no bar can be drawn."""

import io
import re
import time

import pytest
from rich.console import Console

from dart_jax import progress
from dart_jax.progress import progress_bar, progress_bars, stage, tracked


def _work(console):
    with progress_bar(console) as progress:
        task = progress.add_task("first", total=2)
        progress.advance(task)
        progress.update(task, description="second")
        progress.refresh()
        progress.remove_task(task)


def test_a_log_tells_each_description_once(capsys):
    shown = io.StringIO()
    _work(Console(file=shown))
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == ["first", "second"]
    assert lines[0] != "first"  # each has its time
    assert told.out == shown.getvalue() == ""  # reports hold results alone


def test_a_terminal_shows_a_bar_instead(capsys):
    shown = io.StringIO()
    _work(Console(file=shown, force_terminal=True))
    assert "second" in shown.getvalue()
    assert capsys.readouterr().err == ""


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.01)


def told(capsys):
    """The lines of a log, without their times."""
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    return [line[9:] for line in lines]


def test_a_log_tells_now_and_then_how_far_work_is(often, capsys):
    with progress_bars() as bars:
        task = bars.add_task("count", total=8, completed=2, note="")
        bars.update(task, completed=4, note="4 units")
        time.sleep(1.2)  # the clock tells seconds
        bars.update(task, completed=8, note="8 units")
        time.sleep(0.1)
    lines = told(capsys)
    assert lines[0] == "count"
    assert re.fullmatch(r"count: 100 %, 8 units, in 0:00:0\d", lines[-1])
    half = r"count: 50 %, 4 units, 0:00:0\d so far, 0:00:0\d left"
    assert any(re.fullmatch(half, line) for line in lines)
    assert 4 <= len(lines) == len(set(lines))  # none twice, however often it is looked


def test_a_log_tells_that_work_of_unknown_length_goes_on(often, capsys):
    with stage("loading") as describe:
        time.sleep(0.1)
        describe("compiling")
        time.sleep(0.1)
    time.sleep(0.1)
    lines = told(capsys)
    assert lines[:2] == ["loading", "loading: 0:00:00 so far"]
    second = lines[lines.index("compiling") :]
    assert len(second) > 1
    assert all(re.fullmatch(r"compiling(: 0:00:0\d so far)?", line) for line in second)
    assert len(lines) == len(set(lines))


def test_items_are_tracked(capsys):
    assert list(tracked("abc", "letters", Console(file=io.StringIO()))) == ["a", "b", "c"]
    assert told(capsys) == ["letters"]
