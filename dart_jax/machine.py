"""Cores and memory that this process may use: the machine's, within its control groups' limits; and
the end of a worker process."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity's, and no more than its groups' quota, of which
    1.5 cores count as two. `root` is where `proc` and `sys` are."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for group in _groups(root):
        quota = _numbers(group, "cpu.max")  # "max", or a number of microseconds, and a period
        if len(quota) == 2:
            cores = min(cores, math.ceil(quota[0] / quota[1]))
    return max(1, cores)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the machine's, and no more than its groups' limit.
    `root` is where `proc` and `sys` are."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in _groups(root):
        memory = min([memory, *_numbers(group, "memory.max")])
    return memory


def end_with_parent() -> None:
    """Makes this process, which `multiprocessing` started, exit when its parent does."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _groups(root: Path) -> Iterator[Path]:
    """Yields the directories of this process's control group (version 2) and of those around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    top = root / "sys/fs/cgroup"
    for line in lines:
        if line.startswith("0::/"):
            group = top / line.removeprefix("0::/")
            # In a container the path may be the host's, and the container's own group the top.
            yield from (each for each in (group, *group.parents) if each.is_relative_to(top))


def _numbers(group: Path, name: str) -> list[int]:
    """Reads the numbers in a group's file; none if it says "max" or does not exist."""
    try:
        words = (group / name).read_text().split()
        return [int(word) for word in words]
    except (OSError, ValueError):
        return []
