"""The kernels of a compiled program, and the bytes that each moves through the device's memory.

Bytes are those of a kernel's operands and results, as if no cache kept them. A slice counts as what
it takes, an update in place as what it writes, and what a loop runs as often as the compiler knows
that it does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from eval.compile.hlo import Instruction, Module, shape_size

# Instructions that run nothing, or whose work is counted elsewhere.
_FREE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all"}
_FREE |= {"add-dependency", "copy-done", "slice-done", "async-done", "send-done", "recv-done"}
_SLICES = {"slice", "dynamic-slice", "gather"}
# Opcode -> the operand that is written.
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
_HOST = re.compile("callback|infeed|outfeed|send|recv", re.IGNORECASE)
_PRODUCT = re.compile("gemm|matmul|cublas|cudnn\\$conv|dot|convolution", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One launch, or several of the same in a loop.

    Attributes:
      name: the instruction's.
      kind: product, sort, copy, host (a transfer or callback), fusion, or the opcode of another.
      times: how often it runs.
      read: bytes per run.
      written: bytes per run.
      arguments: of the bytes read, those of the program's arguments: weights and caches.
      path: where in the source it comes from: the scopes, such as verify/layer_0/attention/dot.
      source: file and line.
    """

    name: str
    kind: str
    times: int
    read: int
    written: int
    arguments: int
    path: str
    source: str

    @property
    def moved(self) -> int:
        """Bytes of all runs."""
        return self.times * (self.read + self.written)

    @property
    def intermediate(self) -> int:
        """Bytes of all runs that are neither weights nor caches: results for other kernels."""
        return self.moved - self.times * self.arguments


def kernels(module: Module) -> list[Kernel]:
    """The kernels of a module in the order of its text."""
    return list(_walk(module, module.entry, 1, {}))


def _walk(
    module: Module, computation: str, times: int, arguments: dict[str, bool]
) -> Iterator[Kernel]:
    """Kernels of a computation. `arguments`: parameters that are the program's own arguments."""
    entry = computation == module.entry
    own: dict[str, bool] = {}  # instructions that are arguments, or views of them
    for each in module.computations[computation]:
        if each.opcode == "parameter":
            own[each.name] = entry or arguments.get(each.name, False)
        elif each.opcode in ("bitcast", "get-tuple-element"):
            own[each.name] = own.get(each.operands[0], False)
        elif each.opcode == "tuple":
            own[each.name] = all(own.get(name, False) for name in each.operands)
        if each.opcode == "while":
            yield from _walk(module, each.called, times * each.trips, {})
        elif each.opcode in ("call", "async-start") and each.called in module.computations:
            inner = [x for x in module.computations[each.called] if x.opcode == "parameter"]
            passed = zip(inner, each.operands, strict=False)
            known = {x.name: own.get(name, False) for x, name in passed}
            yield from _walk(module, each.called, times, known)
        elif each.opcode == "conditional":
            for branch in _branches(each):
                yield from _walk(module, branch, times, {})
        elif each.opcode not in _FREE:
            yield _kernel(module, computation, each, times, own)


def _branches(conditional: Instruction) -> list[str]:
    found = re.search(r"branch_computations=\{([^}]*)\}", conditional.attributes)
    names = found[1].split(",") if found else []
    names += [conditional.attribute("true_computation"), conditional.attribute("false_computation")]
    return [name.strip().lstrip("%") for name in names if name.strip()]


def _kernel(
    module: Module, computation: str, each: Instruction, times: int, own: dict[str, bool]
) -> Kernel:
    reads, written = _traffic(module, computation, each)
    # A fusion that the compiler made of others has only their names.
    inside = reversed(module.computations.get(each.called, []))
    named = next((x for x in (each, *inside) if x.attribute("op_name")), each)
    path = re.sub(r"jit\([^)]*\)/", "", named.attribute("op_name"))
    frame = named.attribute("stack_frame_id")
    return Kernel(
        name=each.name,
        kind=_kind(module, each),
        times=times,
        read=sum(reads.values()),
        written=written,
        arguments=sum(size for name, size in reads.items() if own.get(name, False)),
        path=path,
        source=module.frames.get(int(frame), "") if frame else "",
    )


def _kind(module: Module, each: Instruction) -> str:
    name = each.backend_kind if each.opcode == "fusion" else ""
    if each.opcode == "custom-call":
        name = each.attribute("custom_call_target")
    if _HOST.search(name or each.opcode):
        return "host"
    inner = module.computations.get(each.called, []) if each.opcode == "fusion" else []
    if _PRODUCT.search(name or each.opcode) or any(_PRODUCT.search(x.opcode) for x in inner):
        return "product"
    if each.opcode == "sort" or "topk" in name.lower():
        return "sort"
    if each.opcode in ("copy", "copy-start"):
        return "copy"
    return "custom call" if each.opcode == "custom-call" else each.opcode


def _traffic(module: Module, computation: str, each: Instruction) -> tuple[dict[str, int], int]:
    """Operand -> bytes read, and bytes written."""
    known = module.named[computation]
    if each.opcode == "fusion" and each.called in module.computations:
        inner = module.computations[each.called]
        parameters = {x.number: x for x in inner if x.opcode == "parameter"}
        reads: dict[str, int] = {}
        for at, name in enumerate(each.operands):
            reads[name] = reads.get(name, 0) + _read(module, each.called, parameters[at])
        root = next(x for x in inner if x.root)
        return reads, _written(module, each.called, root)
    if each.opcode in _SLICES:
        return {each.operands[0]: each.size}, each.size
    if each.opcode in _UPDATES:
        update = known[each.operands[_UPDATES[each.opcode]]]
        return {update.name: update.size}, update.size
    reads = {name: known[name].size for name in each.operands if name in known}
    if each.opcode == "custom-call":  # the last of several results is a workspace
        return reads, shape_size(re.sub(r", s8\[\d+\][^)]*\)$", ")", each.shape))
    return reads, each.size


def _read(module: Module, computation: str, value: Instruction) -> int:
    """Bytes of a fusion's parameter that it reads."""
    total = 0
    for user in module.computations[computation]:
        if value.name not in user.operands:
            continue
        first = user.operands[0] == value.name
        if user.opcode == "bitcast":
            total += _read(module, computation, user)
        elif first and user.opcode in _SLICES:
            total += user.size
        elif not (first and user.opcode in _UPDATES):
            return value.size
    return min(total, value.size)


def _written(module: Module, computation: str, root: Instruction) -> int:
    """Bytes that a fusion writes."""
    known = module.named[computation]
    while root.opcode == "bitcast":
        root = known[root.operands[0]]
    if root.opcode == "tuple":
        return sum(_written(module, computation, known[name]) for name in root.operands)
    if root.opcode in _UPDATES:
        return known[root.operands[_UPDATES[root.opcode]]].size
    return root.size
