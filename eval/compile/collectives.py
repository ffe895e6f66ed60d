"""What the devices of a mesh exchange, as XLA compiled it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from eval.compile.hlo import Instruction, Module, arrays

_KINDS = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"}
_KINDS |= {"collective-permute", "collective-broadcast"}
_LAYER = re.compile(r"\blayer_(\d+)\b")


class Collective(NamedTuple):
    """An exchange.

    Attributes:
      kind: the opcode, such as all-reduce.
      bytes: of its result on a device.
      times: how often it happens.
      layer: of the target; None outside of the layers.
    """

    kind: str
    bytes: int
    times: int
    layer: int | None


class Total(NamedTuple):
    """Exchanges of one kind, or of several.

    Attributes:
      count: how many there are.
      bytes: of all results on a device.
    """

    count: int
    bytes: int

    @classmethod
    def of(cls, found: Iterable[Collective]) -> Total:
        """The total of some."""
        found = list(found)
        return cls(sum(x.times for x in found), sum(x.times * x.bytes for x in found))


def collectives(module: Module) -> list[Collective]:
    """The exchanges of a program. What a loop does counts as often as the compiler knows that it
    runs; of one that starts and ends in two instructions, the first counts."""
    return list(_walk(module, module.entry, 1))


def with_layers(found: Iterable[Collective], compiled: int, layers: int) -> list[Collective]:
    """The exchanges of a model of so many layers, if so many were compiled and all are alike."""
    scaled = []
    for layer in range(layers):
        alike = layer % compiled
        scaled += [x._replace(layer=layer) for x in found if x.layer == alike]
    return [*scaled, *(x for x in found if x.layer is None)]


def _walk(module: Module, name: str, times: int) -> Iterator[Collective]:
    for each in module.computations.get(name, []):
        kind = each.opcode.removesuffix("-start")
        if kind in _KINDS:
            found = _LAYER.search(each.attribute("op_name"))
            yield Collective(kind, _result(each), times, int(found[1]) if found else None)
        elif each.opcode == "conditional":
            for branch in each.branches:
                yield from _walk(module, branch, times)
        elif each.opcode in ("while", "call", "fusion", "async-start"):
            for part in filter(None, (each.attribute("condition"), each.called)):
                yield from _walk(module, part, times * each.trips)


def _result(each: Instruction) -> int:
    """Bytes of the result, wherever it lies."""
    found = [array._replace(on_chip=False) for array in arrays(each.shape)]
    if each.opcode.endswith("-start") and each.opcode != "all-reduce-start":
        found = [array for array in found if array.lengths]  # without what keeps the state
        found = found[len(found) // 2 :]  # without the operands
    return sum(array.size for array in found)
