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

    A line shows each new description at once, then the progress of its task: every `INTERVAL`
    seconds, and at the end.
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
          transient: whether bars disappear at the end; then no line shows the end either.
          at_once: whether lines show descriptions at once, or only that a task goes on.
        """
        super().__init__(
            *columns,
            console=console,
            transient=transient,
            speed_estimate_period=_PACE,
            disable=not console.is_terminal,
        )
        self._transient, self._at_once = transient, at_once
        self._last: dict[TaskID, str] = {}  # line of each task
        self._ended = threading.Event()

    def start(self) -> None:
        """See `Progress`."""
        super().start()
        if self.disable:
            self._ended.clear()
            threading.Thread(target=self._print_now_and_then, daemon=True).start()

    def stop(self) -> None:
        """See `Progress`."""
        self._ended.set()
        super().stop()

    def add_task(self, description: str, *args: Any, completed: float = 0, **kwargs: Any) -> TaskID:
        """See `Progress`; the task's note is empty if none is given."""
        fields: dict[str, Any] = {"note": "", "before": completed, "completed": completed, **kwargs}
        task = super().add_task(description, *args, **fields)
        self._report(task, description)
        return task

    def update(self, task_id: TaskID, *, description: str | None = None, **kwargs: Any) -> None:
        """See `Progress`."""
        super().update(task_id, description=description, **kwargs)
        self._report(task_id, description)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """See `Progress`."""
        super().advance(task_id, advance)
        self._report(task_id)

    def _report(self, task_id: TaskID, description: str | None = None) -> None:
        """Prints a new description, and the end of a task."""
        if self._at_once and description is not None:
            self._print(task_id, description)
        if self._tasks[task_id].finished and not self._transient:
            self._print(task_id, _state(self._tasks[task_id]))

    def _print_now_and_then(self) -> None:
        while not self._ended.wait(INTERVAL):
            with self._lock:
                for task_id, task in self._tasks.items():
                    if task.description and not task.finished:
                        self._print(task_id, _state(task))

    def _print(self, task_id: TaskID, line: str) -> None:
        """Prints a line of a log, unless it is empty or the task's last one."""
        if self.disable and line and self._last.get(task_id) != line:
            self._last[task_id] = line
            say(line)


def _state(task: Task) -> str:
    """Describes the progress of a task: its part, note, time, and the time left at its pace."""
    part = f"{100 * task.completed / task.total:.0f} %" if task.total else ""
    elapsed, done = task.elapsed or 0.0, task.completed - task.fields["before"]
    if task.finished:
        times = f"in {_clock(task.finished_time or 0.0)}"
    else:
        times = f"{_clock(elapsed)} so far"
        if task.total and done > 0:
            times += f", {_clock((task.total - task.completed) / done * elapsed)} left"
    return f"{task.description}: {', '.join(filter(None, [part, task.fields['note'], times]))}"


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
