"""Progress of the programs: bars on a terminal; in a log, a line now and then."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
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


class Bars(Progress):
    """Progress bars where the console is a terminal; otherwise lines on stderr.

    A line tells each new description at once, then how far its task is: every `INTERVAL` seconds,
    and at the end.
    """

    def __init__(
        self,
        *columns: ProgressColumn,
        console: Console,
        transient: bool = False,
        at_once: bool = True,
    ):
        """Sets up the bars; `start`, or a `with` statement, shows them.

        Args:
          columns: of each bar.
          console: where bars are drawn, if it is a terminal.
          transient: whether bars disappear at the end; then no line tells the end either.
          at_once: whether lines tell descriptions at once, or only that a task goes on.
        """
        super().__init__(
            *columns,
            console=console,
            transient=transient,
            speed_estimate_period=_PACE,
            disable=not console.is_terminal,
        )
        self._transient, self._at_once = transient, at_once
        self._told: dict[TaskID, str] = {}
        self._before: dict[TaskID, float] = {}  # what was done before this process began
        self._ended = threading.Event()

    def start(self) -> None:
        """See `Progress`."""
        super().start()
        if self.disable:
            self._ended.clear()
            threading.Thread(target=self._tell_now_and_then, daemon=True).start()

    def stop(self) -> None:
        """See `Progress`."""
        self._ended.set()
        super().stop()

    def add_task(self, description: str, *args: Any, **kwargs: Any) -> TaskID:
        """See `Progress`; the task's note is empty if none is given."""
        task = super().add_task(description, *args, **{"note": "", **kwargs})
        self._before[task] = self._tasks[task].completed
        self._tell_new(task, description)
        return task

    def update(self, task_id: TaskID, *, description: str | None = None, **kwargs: Any) -> None:
        """See `Progress`."""
        super().update(task_id, description=description, **kwargs)
        if description is not None:
            self._tell_new(task_id, description)
        self._tell_end(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """See `Progress`."""
        super().advance(task_id, advance)
        self._tell_end(task_id)

    def _tell_new(self, task_id: TaskID, description: str) -> None:
        if self._at_once:
            self._tell(task_id, description)

    def _tell_end(self, task_id: TaskID) -> None:
        if self._tasks[task_id].finished and not self._transient:
            self._tell(task_id, self._state(task_id))

    def _tell_now_and_then(self) -> None:
        while not self._ended.wait(INTERVAL):
            with self._lock:
                for task_id, task in self._tasks.items():
                    if task.description and not task.finished:
                        self._tell(task_id, self._state(task_id))

    def _tell(self, task_id: TaskID, line: str) -> None:
        """Prints a line of a log, unless it is empty or the task's last one."""
        if self.disable and line and self._told.get(task_id) != line:
            self._told[task_id] = line
            say(line)

    def _state(self, task_id: TaskID) -> str:
        """Describes the progress of a task."""
        task = self._tasks[task_id]
        part = f"{100 * task.completed / task.total:.0f} %" if task.total else ""
        times = _times(task, self._before[task_id])
        parts = [part, task.fields.get("note", ""), times]
        return f"{task.description}: {', '.join(filter(None, parts))}"


def _times(task: Task, before: float) -> str:
    """The time that a task took so far, and the time left at its mean pace.

    Args:
      task: the task.
      before: what was done of it earlier.
    """
    elapsed, done = task.elapsed or 0.0, task.completed - before
    if task.finished:
        return f"in {_clock(task.finished_time or 0.0)}"
    line = f"{_clock(elapsed)} so far"
    if task.total and done > 0:
        line += f", {_clock((task.total - task.completed) / done * elapsed)} left"
    return line


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def say(line: str) -> None:
    """Prints a line on stderr, with the time."""
    now = datetime.datetime.now().astimezone()
    print(f"{now:%H:%M:%S} {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def stage(
    description: str, console: Console | None = None, *, short: bool = False
) -> Iterator[Callable[[str], None]]:
    """Shows that work of unknown length is going on; yields a function that describes it anew.

    Args:
      description: the work, in words.
      console: see `Bars`; None for stderr.
      short: whether the work is so short, as a rule, that only a log tells it, and only that it
        goes on.
    """
    console = console or Console(stderr=True)
    if short and console.is_terminal:
        yield lambda text: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Bars(*columns, console=console, transient=True, at_once=not short) as bars:
        task = bars.add_task(description, total=None)
        yield lambda text: bars.update(task, description=text)


def tracked(items: Collection[T], description: str, console: Console) -> Iterator[T]:
    """Yields the items, with a `progress_bar` of them."""
    with progress_bar(console) as bars:
        task = bars.add_task(description, total=len(items))
        for item in items:
            yield item
            bars.advance(task)


def progress_bars() -> Bars:
    """Returns progress bars on stderr: description, percentage, remaining time and a note."""
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )


def progress_bar(console: Console) -> Bars:
    """Returns a progress bar with counts, elapsed time and a note, which disappears at the end."""
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
    )
