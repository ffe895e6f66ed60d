"""Progress of the programs: bars on a terminal; in a log, a line now and then."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")

INTERVAL = 30.0  # seconds between lines of a log
_PACE = 600.0  # seconds that the pace is averaged over, for the remaining time on a terminal
_PACE_KNOWN = 0.01  # of a task, before which it says nothing: what is compiled takes time first


class Bars(Progress):
    """Progress bars where the console is a terminal; otherwise lines on stderr.

    A line shows each new description at once, then the progress of its task: every `INTERVAL`
    seconds while it advances, and at the end.
    """

    def __init__(self, *columns: ProgressColumn, console: Console, transient: bool = False):
        """Sets up bars of these columns, drawn where `console` is a terminal; `start`, or a `with`
        statement, shows them. Transient ones disappear, and no line shows their end either."""
        super().__init__(
            *columns,
            console=console,
            transient=transient,
            speed_estimate_period=_PACE,
            disable=not console.is_terminal,
        )
        self._transient = transient
        self._lines: dict[TaskID, tuple[str, float]] = {}  # description and time of the last one

    def add_task(self, description: str, *args: Any, completed: float = 0, **kwargs: Any) -> TaskID:
        """See `Progress`; the task's note is empty if none is given."""
        fields: dict[str, Any] = {"note": "", "before": completed, "completed": completed, **kwargs}
        task = super().add_task(description, *args, **fields)
        self._report(task)
        return task

    def update(self, task_id: TaskID, **kwargs: Any) -> None:
        """See `Progress`."""
        before = self._tasks[task_id].finished
        super().update(task_id, **kwargs)
        self._report(task_id, before)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """See `Progress`."""
        self.update(task_id, advance=advance)

    def _report(self, task_id: TaskID, finished: bool = False) -> None:
        """Prints a line where one is due; `finished`: whether the task was before."""
        task = self._tasks[task_id]
        if not self.disable or not task.description:
            return
        description, printed = self._lines.get(task_id, ("", 0.0))
        ends = task.finished and not finished and not self._transient
        if task.description != description:
            say(task.description)
        elif not ends and time.monotonic() < printed + INTERVAL:
            return
        if ends or task.description == description:
            say(_state(task))
        self._lines[task_id] = task.description, time.monotonic()


def _state(task: Task) -> str:
    """Describes the progress of a task: its part, note, time, and the time left at its pace."""
    part = f"{100 * task.completed / task.total:.0f} %" if task.total else ""
    elapsed, new = task.elapsed or 0.0, task.completed - task.fields["before"]
    if task.finished:
        times = f"in {_clock(task.finished_time or 0.0)}"
    else:
        times = f"{_clock(elapsed)} so far"
        if task.total and new >= _PACE_KNOWN * task.total:
            times += f", {_clock((task.total - task.completed) / new * elapsed)} left"
    return f"{task.description}: {', '.join(filter(None, [part, task.fields['note'], times]))}"


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def say(line: str) -> None:
    """Prints a line on stderr, with the time."""
    now = datetime.datetime.now().astimezone()
    print(f"{now:%H:%M:%S} {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def stage(description: str, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Shows that work of unknown length is going on, on a console (stderr by default); yields a
    function that changes the description."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Bars(*columns, console=console or Console(stderr=True), transient=True) as bars:
        task = bars.add_task(description, total=None)
        yield lambda text: bars.update(task, description=text)


def tracked(items: Collection[T], description: str, console: Console) -> Iterator[T]:
    """Yields the items, with a bar of them."""
    with progress_bars(console) as bars:
        task = bars.add_task(description, total=len(items))
        for item in items:
            yield item
            bars.advance(task)


def progress_bars(console: Console | None = None) -> Bars:
    """Returns progress bars on stderr, or on a console, where they disappear at the end:
    description, percentage, elapsed and remaining time, and a note."""
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console or Console(stderr=True),
        transient=console is not None,
    )
