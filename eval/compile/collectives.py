"""What the devices of a mesh exchange, as XLA compiled it, and what a TPU reads meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from eval.compile.hlo import Instruction, Module, arrays

_KINDS = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"}
_KINDS |= {"collective-permute", "collective-broadcast"}
# The scopes of the target's layers, and of all drafting.
_LAYER, _DRAFT = re.compile(r"\blayer_(\d+)\b"), re.compile(r"(?:^|/)draft/")


class Collective(NamedTuple):
    """An exchange.

    Attributes:
      kind: the opcode, such as all-reduce.
      bytes: of its result on a device.
      times: how often it happens.
      layer: of the target; None outside of the layers.
      draft: whether it is the drafter's.
      prefetched: bytes that are on their way into a TPU's vector memory meanwhile, such as the next
        layer's weights. Of a prefetch that is under way during several exchanges, each has an equal
        part.
    """

    kind: str
    bytes: int
    times: int
    layer: int | None
    draft: bool = False
    prefetched: int = 0


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
    runs, and all branches of a condition count; of one that starts and ends in two instructions,
    the first counts."""
    return list(_walk(module, module.entry, 1))


def with_layers(found: Iterable[Collective], compiled: int, layers: int) -> list[Collective]:
    """The exchanges of a model of so many layers, if so many were compiled and all are alike."""
    scaled = []
    for layer in range(layers):
        alike = layer % compiled
        scaled += [x._replace(layer=layer) for x in found if x.layer == alike]
    return [*scaled, *(x for x in found if x.layer is None)]


def _walk(module: Module, name: str, times: int) -> Iterator[Collective]:
    body = module.computations.get(name, [])
    prefetched = _prefetched(body)
    for each in body:
        if kind := _kind(each):
            scope = each.attribute("op_name")
            found, draft = _LAYER.search(scope), _DRAFT.search(scope) is not None
            layer = int(found[1]) if found and not draft else None
            meanwhile = prefetched.get(each.name, 0)
            yield Collective(kind, _result(each), times, layer, draft, meanwhile)
        elif each.opcode == "conditional":
            for branch in each.branches:
                yield from _walk(module, branch, times)
        elif each.opcode in ("while", "call", "fusion", "async-start"):
            for part in filter(None, (each.attribute("condition"), each.called)):
                yield from _walk(module, part, times * each.trips)


def _kind(each: Instruction) -> str:
    """The kind of an exchange; empty if it is none."""
    kind = each.opcode.removesuffix("-start")
    return kind if kind in _KINDS else ""


def _prefetched(body: Sequence[Instruction]) -> Mapping[str, int]:
    """Name of an exchange -> bytes that are prefetched meanwhile: XLA prints instructions in the
    order in which they run."""
    at = {each.name: place for place, each in enumerate(body)}
    exchanges = [each.name for each in body if _kind(each)]
    total = dict.fromkeys(exchanges, 0)
    for each in body:
        if each.opcode not in ("copy-done", "slice-done"):
            continue
        start = body[at[each.operands[0]]]
        result = arrays(start.shape)[0 if start.opcode == "copy-start" else 1]
        during = [name for name in exchanges if at[start.name] < at[name] < at[each.name]]
        for name in during if result.on_chip else ():
            total[name] += result._replace(on_chip=False).size // len(during)
    return total


def _result(each: Instruction) -> int:
    """Bytes of the result, wherever it lies."""
    found = [array._replace(on_chip=False) for array in arrays(each.shape)]
    if each.opcode.endswith("-start") and each.opcode != "all-reduce-start":
        found = [array for array in found if array.lengths]  # without what keeps the state
        found = found[len(found) // 2 :]  # without the operands
    return sum(array.size for array in found)
