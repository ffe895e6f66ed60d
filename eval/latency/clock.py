"""Times compiled programs: calls in a row by the clock, named scopes by JAX's profiler."""

from __future__ import annotations

import collections
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData

from eval.latency.hlo import read_module

_SECONDS, _MOST_CALLS = 0.1, 256  # of a measurement


@dataclasses.dataclass
class Repeated:
    """A compiled program that is called again and again.

    Attributes:
      program: a function of `fixed` and `donated` that returns `donated` anew, and a result.
      fixed: its other arguments.
      donated: arrays such as caches, which are updated in place.
    """

    program: jax.stages.Compiled
    fixed: tuple[Any, ...]
    donated: Any = ()

    def __call__(self, calls: int) -> float:
        """Makes so many calls in a row; returns the seconds of one."""
        result, began = None, time.perf_counter()
        for _ in range(calls):
            self.donated, result = self.program(*self.fixed, self.donated)
        jax.block_until_ready(result)
        return (time.perf_counter() - began) / calls

    def calls(self) -> int:
        """Returns how many calls take about a tenth of a second; a first one warms up."""
        self(1)
        return min(max(round(_SECONDS / min(self(1), self(1))), 2), _MOST_CALLS)


def measure(program: Repeated, repeats: int) -> list[float]:
    """Times calls in a row, one by one dispatched, of which only the last is waited for; returns
    the seconds of a call, one value per repeat."""
    calls = program.calls()
    return [program(calls) for _ in range(repeats)]


def measure_scopes(
    program: Repeated, repeats: int, stage_of: Callable[[str], str | None]
) -> dict[str, list[float]]:
    """Times the stages of a program: sums of what the profiler records of its operations.

    Args:
      program: the program.
      repeats: number of measurements.
      stage_of: from an operation's named scopes, such as jit(step)/verify/layer_0/dot, to its
        stage; None for none.

    Returns:
      For each stage its seconds of a call, one value per repeat; none where the profiler records no
      operations.
    """
    runs = read_module(program.program.as_text() or "").runs
    stages = {run.instruction.name: stage_of(run.scope) for run in runs}
    calls, times = program.calls(), collections.defaultdict[str, list[float]](list)
    for _ in range(repeats):
        seconds: dict[str, float] = collections.defaultdict(float)
        for operation, duration in _operations(program, calls):
            if stage := stages.get(operation):
                seconds[stage] += duration / calls
        for stage, value in seconds.items():
            times[stage].append(value)
    return times


def _operations(program: Repeated, calls: int) -> list[tuple[str, float]]:
    """Returns the instructions that run in so many calls, and the seconds of each."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own calls would be slower
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            program(calls)
        [file] = Path(folder).rglob("*.xplane.pb")
        profile = ProfileData.from_file(str(file))
    events = (x for plane in profile.planes for line in plane.lines for x in line.events)
    # TPUs name events by their instructions.
    names = ((str(dict(x.stats).get("hlo_op", x.name)), x.duration_ns) for x in events)
    return [(name.lstrip("%").partition(" ")[0], 1e-9 * ns) for name, ns in names]
