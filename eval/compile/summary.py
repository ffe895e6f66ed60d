"""What a compiled program does, in figures."""

from __future__ import annotations

import collections
import dataclasses
import re
import statistics
from pathlib import Path
from typing import Any

import jax

from eval.compile.cases import Case, Program
from eval.compile.collectives import Collective, Total, collectives, with_layers
from eval.compile.graphs import Graphs, read_graphs
from eval.compile.hlo import read_module
from eval.compile.kernels import Kernel, kernels
from eval.compile.prediction import Room, Setting
from eval.latency.cost import Cost

_LAYER = re.compile(r"\blayer_(\d+)\b")


@dataclasses.dataclass(frozen=True)
class Summary:
    """The figures of one program.

    Attributes:
      case: the setting.
      program: prefill, step or loop.
      seconds: to trace, lower and compile it.
      kernels: what it runs.
      graphs: the CUDA graphs; None for other devices.
      updated_in_place: arguments that share their memory with results.
      caches_not_in_place: caches among the arguments that do not.
      temporary: bytes of memory besides arguments and results.
      peak: bytes of memory in use at once, arguments and results included.
      arguments: bytes.
      least: what must be moved and computed; None where that is not known.
      collectives: what it exchanges with other devices.
    """

    case: Case
    program: Program
    seconds: float
    kernels: list[Kernel]
    graphs: Graphs | None
    updated_in_place: int
    caches_not_in_place: int
    temporary: int
    peak: int
    arguments: int
    least: Cost | None
    collectives: list[Collective] = dataclasses.field(default_factory=list)

    @property
    def launches(self) -> int:
        """Number of kernels."""
        return sum(kernel.times * kernel.launches for kernel in self.kernels)

    @property
    def by_kind(self) -> dict[str, int]:
        """Kind -> number of kernels, the most frequent first."""
        counts: collections.Counter[str] = collections.Counter()
        for kernel in self.kernels:
            counts[kernel.kind] += kernel.times * kernel.launches
        return dict(counts.most_common())

    @property
    def of_a_layer(self) -> float:
        """Number of kernels in a layer of the target: the median over the layers."""
        counts: collections.Counter[str] = collections.Counter()
        for kernel in self.kernels:
            if found := _LAYER.search(kernel.path):
                counts[found[1]] += kernel.times * kernel.launches
        return statistics.median(counts.values()) if counts else 0

    @property
    def per_layer(self) -> float:
        """Number of all kernels over the number of the target's layers."""
        return self.launches / self.case.config.target.num_hidden_layers

    @property
    def outside_graphs(self) -> list[Kernel]:
        """What is launched outside of CUDA graphs."""
        if self.graphs is None:
            return []
        inside = self.graphs.inside
        return [kernel for kernel in self.kernels if kernel.name not in inside and kernel.launches]

    @property
    def in_graphs(self) -> int | None:
        """Number of kernels in CUDA graphs; None for other devices."""
        if self.graphs is None:
            return None
        return self.launches - sum(x.times * x.launches for x in self.outside_graphs)

    @property
    def moved(self) -> int:
        """Bytes read and written, if no cache kept them."""
        return sum(kernel.moved for kernel in self.kernels)

    @property
    def ratio(self) -> float | None:
        """Bytes moved over those that must be."""
        return None if self.least is None else self.moved / self.least.bytes

    @property
    def weights_read(self) -> int:
        """Bytes of the weights that are read."""
        return sum(kernel.times * kernel.weights for kernel in self.kernels)

    @property
    def copied(self) -> int:
        """Bytes that copies write."""
        return sum(
            kernel.times * kernel.written for kernel in self.kernels if kernel.kind == "copy"
        )

    @property
    def caches_copied(self) -> int:
        """How many caches are copied, padded or converted as a whole."""
        return sum(
            kernel.times * (array in self.case.caches)
            for kernel in self.kernels
            if kernel.kind != "prefetch"
            for array in kernel.copied
        )

    def host(self, *, in_loop: bool) -> int:
        """Number of transfers to or from the host, in loops or outside of them."""
        transfers = (x for x in self.kernels if x.kind == "host" and x.in_loop == in_loop)
        return sum(x.times * x.launches for x in transfers)

    @property
    def largest_sort(self) -> int:
        """Bytes that the largest sort reads."""
        return max((kernel.read for kernel in self.kernels if kernel.kind == "sort"), default=0)

    # Of several devices. If layers were left out to compile quickly, these are figures of the
    # whole shape nevertheless.

    @property
    def exchanged(self) -> list[Collective]:
        """The exchanges of the shape with all its layers."""
        compiled, whole = self.case.config.target, self.case.whole.config.target
        return with_layers(self.collectives, compiled.num_hidden_layers, whole.num_hidden_layers)

    def room(self, memory: int) -> Room:
        """What is left of the memory of a device. Of layers that were left out, temporary memory
        holds the rows of a step."""
        case, whole = self.case, self.case.whole
        rows = case.costs.batch * max(case.nodes + 1, case.execution.least_rows)
        left_out = rows * (whole.costs.cached_row - case.costs.cached_row)
        temporary = self.temporary + left_out
        groups = case.execution.groups
        return Room(memory, whole.weight_bytes, temporary, whole.cached_token, groups)

    def seconds_of_step(self, setting: Setting) -> float | None:
        """What a step would take; None if this is none."""
        cost = self.case.whole.least(self.program) if self.program == "step" else None
        return None if cost is None else setting.step(cost, self.exchanged)

    def tokens_per_second(self, setting: Setting) -> float | None:
        """Of all sequences together; None if this is no step."""
        seconds = self.seconds_of_step(setting)
        tau = 1 if self.case.method == "plain" else setting.tau
        return None if seconds is None else self.case.batch * tau / seconds

    def predicted(self, setting: Setting) -> dict[str, Any]:
        """The figures of several devices."""
        room = self.room(setting.accelerator.memory)
        return {
            "weights": room.weights,
            "caches": self.case.whole.cache_bytes,
            "temporary": room.temporary,
            "cache_tokens": room.tokens,
            "exchange_seconds": setting.exchange(self.exchanged),
            "hidden_seconds": setting.hidden(self.exchanged),
            "step_seconds": self.seconds_of_step(setting),
            "tokens_per_second": self.tokens_per_second(setting),
        }

    def as_json(self) -> dict[str, Any]:
        """Everything except the single kernels."""
        mesh = self.case.execution.mesh
        alone = dataclasses.asdict(self.case.on(None))
        shape = None if mesh is None else dict(mesh.shape)
        alone["execution"] |= {"mesh": shape}
        totals = {
            kind: Total.of(x for x in self.collectives if x.kind == kind)._asdict()
            for kind in dict.fromkeys(x.kind for x in self.collectives)
        }
        return {
            **alone,
            "weights": self.case.weights,
            "collectives": totals,
            "program": self.program,
            "seconds": self.seconds,
            "kernels": self.launches,
            "by_kind": self.by_kind,
            "of_a_layer": self.of_a_layer,
            "per_layer": self.per_layer,
            "graphs": None if self.graphs is None else self.graphs.count,
            "in_graphs": self.in_graphs,
            "outside_graphs": [kernel.name for kernel in self.outside_graphs],
            "moved": self.moved,
            "weights_read": self.weights_read,
            "needed": None if self.least is None else self.least.bytes,
            "ratio": self.ratio,
            "operations": None if self.least is None else self.least.operations,
            "copied": self.copied,
            "largest_sort": self.largest_sort,
            "host_in_loops": self.host(in_loop=True),
            "host_outside_loops": self.host(in_loop=False),
            "updated_in_place": self.updated_in_place,
            "caches_copied": self.caches_copied,
            "caches_not_in_place": self.caches_not_in_place,
            "temporary": self.temporary,
            "peak": self.peak,
            "arguments": self.arguments,
        }


def summarise(
    case: Case, program: Program, compiled: jax.stages.Compiled, seconds: float, dump: Path
) -> Summary:
    """Reads a compiled program.

    Args:
      case: the setting.
      program: which one it is.
      compiled: the program.
      seconds: that it took to trace, lower and compile.
      dump: what the compiler wrote while compiling it.
    """
    module = read_module(compiled.as_text() or "")
    memory = compiled.memory_analysis()
    assert memory is not None  # compilers of all platforms report it
    graphs = read_graphs(dump)
    in_place = set(module.updated_in_place)
    caches = {at for at, array in module.arguments().items() if array in case.caches}
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    peak = held - memory.alias_size_in_bytes + memory.temp_size_in_bytes
    return Summary(
        case=case,
        program=program,
        seconds=seconds,
        kernels=kernels(
            module, None if graphs is None else graphs.launches, case.read_in_part(program)
        ),
        graphs=graphs,
        updated_in_place=len(in_place),
        caches_not_in_place=len(caches - in_place),
        temporary=memory.temp_size_in_bytes,
        peak=getattr(memory, "peak_memory_in_bytes", 0) or peak,
        arguments=memory.argument_size_in_bytes,
        least=case.least(program),
        collectives=collectives(module),
    )
