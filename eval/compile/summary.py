"""What a compiled program does, in figures."""

from __future__ import annotations

import collections
import dataclasses
import re
import statistics
from typing import Any

import jax

from eval.compile.cases import Case, Program
from eval.compile.hlo import Module, read_module
from eval.compile.kernels import Kernel, kernels
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
      updated_in_place: arguments that share their memory with results.
      temporary: bytes of memory besides arguments and results.
      arguments: bytes.
      least: what must be moved and computed; None where that is not known.
    """

    case: Case
    program: Program
    seconds: float
    kernels: list[Kernel]
    updated_in_place: int
    temporary: int
    arguments: int
    least: Cost | None

    @property
    def launches(self) -> int:
        """Number of kernels."""
        return sum(kernel.times for kernel in self.kernels)

    @property
    def by_kind(self) -> dict[str, int]:
        """Kind -> number of kernels, the most frequent first."""
        counts: collections.Counter[str] = collections.Counter()
        for kernel in self.kernels:
            counts[kernel.kind] += kernel.times
        return dict(counts.most_common())

    @property
    def of_a_layer(self) -> float:
        """Number of kernels in a layer of the target: the median over the layers."""
        counts: collections.Counter[str] = collections.Counter()
        for kernel in self.kernels:
            if found := _LAYER.search(kernel.path):
                counts[found[1]] += kernel.times
        return statistics.median(counts.values()) if counts else 0

    @property
    def moved(self) -> int:
        """Bytes read and written, if no cache kept them."""
        return sum(kernel.moved for kernel in self.kernels)

    @property
    def ratio(self) -> float | None:
        """Bytes moved over those that must be."""
        return None if self.least is None else self.moved / self.least.bytes

    @property
    def copied(self) -> int:
        """Bytes that copies write."""
        return sum(
            kernel.times * kernel.written for kernel in self.kernels if kernel.kind == "copy"
        )

    @property
    def largest_sort(self) -> int:
        """Bytes that the largest sort reads."""
        return max((kernel.read for kernel in self.kernels if kernel.kind == "sort"), default=0)

    def as_json(self) -> dict[str, Any]:
        """Everything except the single kernels."""
        return {
            **dataclasses.asdict(self.case),
            "program": self.program,
            "seconds": self.seconds,
            "kernels": self.launches,
            "by_kind": self.by_kind,
            "of_a_layer": self.of_a_layer,
            "moved": self.moved,
            "needed": None if self.least is None else self.least.bytes,
            "ratio": self.ratio,
            "copied": self.copied,
            "largest_sort": self.largest_sort,
            "host": self.by_kind.get("host", 0),
            "updated_in_place": self.updated_in_place,
            "temporary": self.temporary,
            "arguments": self.arguments,
        }


def summarise(
    case: Case, program: Program, compiled: jax.stages.Compiled, seconds: float
) -> Summary:
    """Reads a compiled program."""
    module: Module = read_module(compiled.as_text() or "")
    memory = compiled.memory_analysis()
    assert memory is not None  # compilers of all platforms report it
    return Summary(
        case=case,
        program=program,
        seconds=seconds,
        kernels=kernels(module),
        updated_in_place=module.updated_in_place,
        temporary=memory.temp_size_in_bytes,
        arguments=memory.argument_size_in_bytes,
        least=case.least(program),
    )
