"""What XLA's runtime for GPUs launches, and which of it inside CUDA graphs (command buffers).

The optimised module does not show either; the compiler writes both, as its schedule of thunks, into
the folder `--xla_dump_to`.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

# Thunks that run other thunks, or wait for them.
_STRUCTURE = {"kCommandBuffer", "kSequential", "kWhile", "kConditional", "kAsyncStart"}
_STRUCTURE |= {"kAsyncDone", "kWaitForStreams"}


@dataclasses.dataclass(frozen=True)
class Graphs:
    """The schedule of a program.

    Attributes:
      count: number of CUDA graphs.
      inside: instructions whose kernels are in one.
      launches: instruction -> number of kernels.
    """

    count: int
    inside: frozenset[str]
    launches: Mapping[str, int]


def read_graphs(folder: Path) -> Graphs | None:
    """Reads the schedule of the only program dumped into a folder; None if there is none."""
    schedules = list(folder.glob("*.thunk_sequence_after_thunk_passes.txt"))
    described = list(folder.glob("*.thunk_metadata.txt"))
    if len(schedules) != 1 or len(described) != 1:
        return None
    return parse_graphs(schedules[0].read_text(), described[0].read_text())


def parse_graphs(schedule: str, described: str) -> Graphs:
    """Reads a schedule.

    Args:
      schedule: a line per thunk with its number and kind; those of a graph are indented below it.
      described: text protos that give a thunk's number the instruction's name.
    """
    names: dict[int, str] = {}
    launches: collections.Counter[str] = collections.Counter()
    for text in described.split("thunk_metadata {")[1:]:
        name, kind, number = (
            re.search(rf"\b{field}: \"?([^\"\s]+)", text)
            for field in ("profile_annotation", "thunk_kind", "thunk_id")
        )
        if name and kind and kind[1] not in _STRUCTURE:
            names[int(number[1]) if number else 0] = name[1]
            launches[name[1]] += 1
    count, inside, graph = 0, set(), None
    for line in schedule.splitlines():
        if not (found := re.match(r"( *)(\d+): (k\w+)", line)):
            continue
        indent = len(found[1])
        if graph is not None and indent <= graph:
            graph = None
        if found[3] == "kCommandBuffer":
            count, graph = count + 1, indent
        elif graph is not None and int(found[2]) in names:
            inside.add(names[int(found[2])])
    return Graphs(count, frozenset(inside), dict(launches))
