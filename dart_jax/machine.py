"""The cores and the memory that this process may use: of the machine, and of its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity's, and no more than its groups' quota.

    A quota of 1.5 cores counts as two.

    Args:
      root: where `proc` and `sys` are.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for group in _groups(root, "cpu"):
        quota, period = _numbers(group, "cpu.max") or (None, None)  # version 2: "max" or both
        if quota is None:
            quota, period = (
                next(iter(_numbers(group, f"cpu.cfs_{name}_us")), None)
                for name in ("quota", "period")
            )
        if quota and period and quota > 0:  # -1 is none
            cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the machine's, and no more than its groups' limit.

    Args:
      root: where `proc` and `sys` are.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            memory = min([memory, *_numbers(group, name)])
    return memory


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yields the directories of this process's control groups and of the groups around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup"
        if controllers:  # version 1: a hierarchy per controller
            if controller not in controllers.split(","):
                continue
            top /= controller
        group = top / path.lstrip("/")
        # In a container the path may be the host's, and the container's own group the top.
        yield from (each for each in (group, *group.parents) if each.is_relative_to(top))


def _numbers(group: Path, name: str) -> list[int]:
    """Reads the numbers in a group's file; none if it says "max" or does not exist."""
    try:
        words = (group / name).read_text().split()
        return [int(word) for word in words]
    except (OSError, ValueError):
        return []
