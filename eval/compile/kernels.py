"""The kernels of a compiled program, and the bytes that each moves through the device's memory.

Bytes are those of a kernel's operands and results, as if no cache kept them. A slice counts as what
it takes, an update in place as what it writes (by a custom call, as what it is given besides), a
custom call as its author's estimate where the module has one, a mixture's experts in Triton's
kernels as those that rows reach, and what a loop runs as often as the compiler knows that it does.
What lies in a TPU's vector memory does not count.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from eval.compile.hlo import Array, Instruction, Module, arrays

# Instructions that run nothing, or whose work is counted elsewhere.
_FREE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all"}
_FREE |= {"add-dependency", "copy-done", "slice-done", "async-done", "send-done", "recv-done"}
_FREE |= {"all-reduce-done", "all-gather-done", "collective-permute-done", "partition-id"}
_FREE_CALLS = {"AllocateBuffer", "AssumeGatherIndicesInBound"}
_SLICES = {"slice", "dynamic-slice", "gather"}
# Opcode -> the operand that is written.
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
_HOST = re.compile("callback|infeed|outfeed|send|recv", re.IGNORECASE)
_PRODUCT = re.compile("gemm|matmul|cublas|cudnn\\$conv|dot|convolution", re.IGNORECASE)
# Parts of an operation's name that no named scope of the source gave it.
_NOISE = re.compile(
    r"jit\(.*\)|shard_map|while|body|cond|branch_\d+_fun|closed_call|eval_jaxpr|checkpoint|.*->.*|(?:vmap\()+\)+"
)
_WEIGHTS = re.compile(r"(target|drafter)/")  # the path of an argument that is one
_OF_COMPILER = {"constant", "parameter", "broadcast", "iota", "tuple", "bitcast"}
_OF_COMPILER |= {"get-tuple-element", "while"}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An instruction that runs something.

    Attributes:
      name: the instruction's.
      kind: product, sort, top-k, copy, prefetch (a copy to or from a TPU's vector memory), host (a
        transfer or callback), fusion, custom (a call), or the opcode of another.
      times: how often it runs.
      launches: how many kernels a run is: more than one for long sorts.
      in_loop: whether a loop runs it.
      read: bytes per run.
      written: bytes per run.
      arguments: of the bytes read, those of the program's arguments: weights and caches.
      weights: of these, the models' weights.
      copied: arguments that it reads whole and writes again: as they are, padded, or in another
        type or layout.
      sorted: entries in a row that it sorts; 0 if it is not a sort.
      path: the named scopes in the source and the operation, such as verify/layer_0/mlp/dot.
      source: file and line.
    """

    name: str
    kind: str
    times: int
    launches: int
    in_loop: bool
    read: int
    written: int
    arguments: int
    weights: int
    copied: tuple[Array, ...]
    sorted: int
    path: str
    source: str

    @property
    def moved(self) -> int:
        """Bytes of all runs; every kernel of a sort reads and writes everything."""
        passes = self.launches if self.kind == "sort" else 1
        return self.times * passes * (self.read + self.written)

    @property
    def intermediate(self) -> int:
        """Bytes of all runs that are neither weights nor caches: results for other kernels."""
        return self.moved - self.times * self.arguments


def kernels(
    module: Module,
    launches: Mapping[str, int] | None = None,
    read_in_part: Mapping[Array, float] | None = None,
) -> list[Kernel]:
    """The kernels of a module in the order of its text.

    Args:
      module: the module.
      launches: instruction -> the kernels that it launches; None for one each.
      read_in_part: arrays of which Triton's kernels read only a share.
    """
    return list(
        _Walk(module, launches, read_in_part or {}).computation(module.entry, 1, False, None)
    )


class _Value(NamedTuple):
    """What is known of a value.

    Attributes:
      argument: the program's argument that it is, or is a view of.
      path: the scopes that it comes from.
      source: file and line.
      parts: of a tuple, its elements.
    """

    argument: Array | None = None
    path: str = ""
    source: str = ""
    parts: tuple[_Value, ...] = ()


class _Output(NamedTuple):
    """A result: the array, the bytes written, and the operand that is updated in place."""

    array: Array
    written: int
    updated: str = ""


@dataclasses.dataclass(frozen=True)
class _Walk:
    module: Module
    launches: Mapping[str, int] | None
    read_in_part: Mapping[Array, float]

    def computation(
        self, name: str, times: int, in_loop: bool, passed: Sequence[_Value] | None
    ) -> Iterator[Kernel]:
        """Kernels of a computation. `passed`: its parameters; None for the program's arguments."""
        values: dict[str, _Value] = {}
        for each in self.module.computations.get(name, []):
            operands = [values.get(operand, _Value()) for operand in each.operands]
            values[each.name] = value = self._value(each, operands, passed)
            if each.opcode == "while":
                for part in (each.attribute("condition"), each.called):
                    yield from self.computation(part, times * each.trips, True, operands)
            elif each.opcode == "conditional":
                for branch, operand in zip(each.branches, operands[1:], strict=False):
                    yield from self.computation(branch, times, in_loop, [operand])
            elif each.opcode in ("call", "async-start") and self._computed(each):
                yield from self.computation(each.called, times, in_loop, operands)
            elif each.opcode not in _FREE and (
                each.attribute("custom_call_target") not in _FREE_CALLS
            ):
                outputs = self._outputs(name, each)
                kernel = self._kernel(name, each, values, outputs)
                yield dataclasses.replace(kernel, times=times, in_loop=in_loop)
                parts = tuple(
                    value._replace(argument=values[x.updated].argument if x.updated else None)
                    for x in outputs
                )
                is_tuple = each.shape.startswith("(") or not parts
                values[each.name] = value._replace(parts=parts) if is_tuple else parts[0]

    def _value(
        self, each: Instruction, operands: Sequence[_Value], passed: Sequence[_Value] | None
    ) -> _Value:
        first = operands[0] if operands else _Value()
        if each.opcode == "parameter":
            if passed is not None:
                return passed[each.number]
            return _Value(
                next(iter(arrays(each.shape)), None), _argument(each.attribute("op_name"))
            )
        if each.opcode in ("bitcast", "while"):
            return first
        if each.opcode == "get-tuple-element":
            return first.parts[each.index] if each.index < len(first.parts) else _Value()
        # What the compiler added belongs to what it reads.
        path, source = self._place(each) or next(
            ((x.path, x.source) for x in operands if x.path), ("", "")
        )
        if each.opcode == "tuple":
            return _Value(None, path, source, tuple(operands))
        return _Value(None, path, source)

    def _computed(self, each: Instruction) -> list[Instruction]:
        return self.module.computations.get(each.called, [])

    def _inside(self, each: Instruction) -> list[Instruction]:
        return self._computed(each) if each.opcode == "fusion" else []

    def _kernel(
        self,
        computation: str,
        each: Instruction,
        values: Mapping[str, _Value],
        outputs: Sequence[_Output],
    ) -> Kernel:
        """A kernel that runs once."""
        reads = self._reads(computation, each)
        read = sum(reads.values())
        written = sum(output.written for output in outputs)
        given = {name: size for name, size in reads.items() if values[name].argument}
        arguments = sum(given.values())
        weights = sum(size for name, size in given.items() if _WEIGHTS.match(values[name].path))
        if each.estimate is not None:
            written = min(written, each.estimate)
            read = each.estimate - written
            arguments = min(arguments, read)
            weights = min(weights, arguments)
        value = values[each.name]
        path = value.path
        if self._place(each) is None:  # it is named after what it reads
            added = next((x.opcode for x in self._inside(each) if x.root), each.opcode)
            path = f"{path}/{added}".lstrip("/")
        inside = self._inside(each)
        kind = self._kind(computation, each, inside)
        reduces = kind == "product" or any(x.opcode == "reduce" for x in inside)
        return Kernel(
            name=each.name,
            kind=kind,
            times=1,
            launches=1 if self.launches is None else self.launches.get(each.name, 0),
            in_loop=False,
            read=read,
            written=written,
            arguments=arguments,
            weights=weights,
            copied=() if reduces else self._copied(computation, reads, values, outputs),
            sorted=max((_sorted_entries(x) for x in (each, *inside)), default=0),
            path=path,
            source=value.source,
        )

    def _copied(
        self,
        computation: str,
        reads: Mapping[str, int],
        values: Mapping[str, _Value],
        outputs: Sequence[_Output],
    ) -> tuple[Array, ...]:
        known = self.module.named[computation]
        written = {x.array.count for x in outputs if not x.updated and not x.array.on_chip}
        read = (
            argument
            for name, size in reads.items()
            if (argument := values[name].argument) and size >= known[name].size > 0
        )
        # Padding makes a copy longer.
        return tuple(x for x in read if any(x.count <= count < 2 * x.count for count in written))

    def _place(self, each: Instruction) -> tuple[str, str] | None:
        """Scopes and source of an instruction; of a fusion that the compiler named, those of what
        it computes last in the innermost scope. None if it comes from no place in the source."""
        named = [x for x in (each, *reversed(self._inside(each))) if x.attribute("op_name")]
        named = [x for x in named if x.opcode not in _OF_COMPILER]
        if not named:
            return None

        def depth(x: Instruction) -> tuple[int, bool]:
            return _scopes(x.attribute("op_name")).count("/"), bool(x.attribute("stack_frame_id"))

        named.sort(key=depth, reverse=True)
        frame = named[0].attribute("stack_frame_id")
        source = self.module.frames.get(int(frame), "") if frame else ""
        return _scopes(named[0].attribute("op_name")), source

    def _kind(self, computation: str, each: Instruction, inside: Sequence[Instruction]) -> str:
        name = each.backend_kind if each.opcode == "fusion" else ""
        if each.opcode == "custom-call":
            name = each.attribute("custom_call_target")
        if _HOST.search(name or each.opcode):
            return "host"
        if _PRODUCT.search(name or each.opcode) or any(_PRODUCT.search(x.opcode) for x in inside):
            return "product"
        if "topk" in name.lower():
            return "top-k"
        if any(x.opcode == "sort" for x in (each, *inside)):
            return "sort"
        if each.opcode in ("copy", "copy-start"):
            source = self.module.named[computation][each.operands[0]]
            ends = arrays(source.shape)[:1] + arrays(each.shape)[:1]
            return "prefetch" if any(end.on_chip for end in ends) else "copy"
        if each.opcode == "slice-start":
            return "prefetch" if arrays(each.shape)[1].on_chip else "copy"
        return "custom" if each.opcode == "custom-call" else each.opcode

    def _reads(self, computation: str, each: Instruction) -> dict[str, int]:
        """Operand -> bytes read."""
        known = self.module.named[computation]
        inside = self._inside(each)
        if inside:
            parameters = {x.number: x for x in inside if x.opcode == "parameter"}
            reads: dict[str, int] = {}
            for at, name in enumerate(each.operands):
                size = _read(inside, parameters[at]) if known[name].size else 0
                reads[name] = reads.get(name, 0) + size
            return reads
        if each.opcode == "slice-start":
            taken = arrays(each.shape)[1]._replace(on_chip=False)
            source = known[each.operands[0]]
            return {source.name: taken.size if source.size else 0}
        if each.opcode in _SLICES:
            source = known[each.operands[0]]
            return {source.name: each.logical_size if source.size else 0}
        if each.opcode in _UPDATES:
            update = known[each.operands[_UPDATES[each.opcode]]]
            return {update.name: update.size}
        reads = {name: known[name].size for name in each.operands if name in known}
        if "triton" in each.attribute("custom_call_target"):
            for name, size in reads.items():
                found = arrays(known[name].shape)[:1]
                reads[name] = round(size * (self.read_in_part.get(found[0], 1) if found else 1))
        if updated := {each.operands[at] for at in each.updates.values()}:
            given = sum(size for name, size in reads.items() if name not in updated)
            for name in updated:
                reads[name] = min(reads[name], given // len(updated))
        return reads

    def _outputs(self, computation: str, each: Instruction) -> list[_Output]:
        known = self.module.named[computation]
        results = arrays(each.shape)
        if each.opcode == "copy-start":  # its result also has the operand and a semaphore
            return [_Output(results[0], results[0].size)]
        if each.opcode == "slice-start":  # its result also has the operand, first, and a semaphore
            return [_Output(results[1], results[1].size)]
        if each.opcode in _UPDATES:
            update = known[each.operands[_UPDATES[each.opcode]]]
            written = update.logical_size if results[0].size else 0
            return [_Output(results[0], written, each.operands[0])]
        if each.opcode == "custom-call":
            if len(results) > 1 and results[-1].dtype == "s8" and len(results[-1].lengths) == 1:
                results.pop()  # a workspace
            updated = {at: each.operands[operand] for at, operand in each.updates.items()}
            return [
                # What is written counts as read.
                _Output(array, 0, updated[at]) if at in updated else _Output(array, array.size)
                for at, array in enumerate(results)
            ]
        if inside := self._inside(each):
            return _outputs_of_fusion(each, inside, results)
        return [_Output(array, array.size) for array in results]


def _outputs_of_fusion(
    each: Instruction, inside: Sequence[Instruction], results: Sequence[Array]
) -> list[_Output]:
    known = {x.name: x for x in inside}

    def behind(value: Instruction) -> Instruction:
        while value.opcode == "bitcast":
            value = known[value.operands[0]]
        return value

    root = next(x for x in inside if x.root)
    roots = [known[name] for name in root.operands] if root.opcode == "tuple" else [root]
    outputs = []
    for array, value in zip(results, map(behind, roots), strict=False):
        output = _Output(array, array.size)
        if value.opcode in _UPDATES and array.size:
            base = behind(known[value.operands[0]])
            if base.opcode == "parameter":  # otherwise there is nothing to update
                size = known[value.operands[_UPDATES[value.opcode]]].logical_size
                output = _Output(array, size, each.operands[base.number])
        outputs.append(output)
    return outputs


def _read(inside: Sequence[Instruction], value: Instruction) -> int:
    """Bytes of a fusion's parameter that it reads."""
    total = 0
    for user in inside:
        if value.name not in user.operands:
            continue
        first = user.operands[0] == value.name
        if user.opcode == "bitcast":
            total += _read(inside, user)
        elif user.opcode == "convert" and not user.root:  # of no more than is used
            total += _read(inside, user) * value.logical_size // user.logical_size
        elif first and user.opcode in _SLICES:
            total += user.logical_size
        elif not (first and user.opcode in _UPDATES):
            return value.logical_size
    return min(total, value.logical_size)


def _sorted_entries(each: Instruction) -> int:
    """Length of the axis that a sort sorts."""
    found = re.search(r"dimensions=\{(\d+)\}", each.attributes) if each.opcode == "sort" else None
    return arrays(each.shape)[0].lengths[int(found[1])] if found else 0


def _argument(name: str) -> str:
    """Name of an argument: of params['target']['layers'][3], for instance, target/layer_3."""
    path = re.sub(r"\W+", "/", name.removeprefix("params")).strip("/")
    path = re.sub(r"\btarget_cache/(\d+)\b", r"target_cache/layer_\1", path)
    return re.sub(r"\blayers/(\d+)\b", r"layer_\1", path)


def _scopes(name: str) -> str:
    return "/".join(part for part in name.split("/") if not _NOISE.fullmatch(part))
