"""Progress bars: lines in a log, where no bar can be drawn."""

import io
import re

from rich.console import Console

from dart_jax.progress import progress_bar


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
