"""Progress bars of the programs."""

from __future__ import annotations

import datetime
import sys
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def progress_bars() -> Progress:
    """Returns progress bars on stderr: description, percentage, remaining time and a note."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )


def progress_bar(console: Console) -> Progress:
    """Returns a progress bar with counts and elapsed time, which disappears at the end.

    Where no bar can be drawn, such as in a log, a line on stderr tells each new description.
    """
    return _Logged(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Logged(Progress):
    """Prints descriptions instead of a bar if it is disabled."""

    def add_task(self, description: str, *args: Any, **kwargs: Any) -> TaskID:
        """See `Progress`."""
        self._log(description)
        return super().add_task(description, *args, **kwargs)

    def update(self, task_id: TaskID, *, description: str | None = None, **kwargs: Any) -> None:
        """See `Progress`."""
        self._log(description)
        super().update(task_id, description=description, **kwargs)

    def _log(self, description: str | None) -> None:
        if self.disable and description:
            now = datetime.datetime.now().astimezone()
            print(f"{now:%H:%M:%S} {description}", file=sys.stderr, flush=True)
