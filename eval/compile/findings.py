"""Contents of a compiled program: what it runs, exchanges and holds, read from the optimised
module; XLA says how much memory it needs."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax

from eval.compile.cases import Case
from eval.compile.config import Program

_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|(?:ragged-)?all-to-all|collective-\w+)(-start)?"
)
_LAYER, _DRAFT = re.compile(r"\blayer_(\d+)\b"), re.compile(r"(?:^|/)draft/")
_HOST = re.compile("callback|infeed|outfeed|send|recv", re.IGNORECASE)
_PALLAS = re.compile("triton|mosaic|tpu_custom_call")
_CACHE = re.compile("cache|draft_state|pools")  # in the name of an argument
_AS_IT_IS = {"bitcast", "convert", "copy", "reshape", "transpose"}
_PARTS = {"slice", "dynamic-slice", "gather"}
_UPDATES, _SUMS = {"dynamic-update-slice", "scatter"}, {"dot", "convolution", "reduce"}
# Thunks that run other thunks, or wait for them.
_STRUCTURE = {"kCommandBuffer", "kSequential", "kWhile", "kConditional", "kAsyncStart"}
_STRUCTURE |= {"kAsyncDone", "kWaitForStreams"}


class Graphs(NamedTuple):
    """The schedule of a program on a GPU: how many CUDA graphs, the instructions whose kernels are
    in one, and each instruction's number of kernels."""

    count: int
    inside: set[str]
    launches: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Findings:
    """Figures of a program; a loop's body counts once.

    Attributes:
      kernels: number of kernels; on a TPU, of instructions.
      of_a_layer: of these, in a layer of the target: the median over the layers.
      attention: layers of the target whose attention a Pallas kernel computes.
      graphs: number of CUDA graphs, or None for other devices.
      outside: what runs outside of CUDA graphs, once for each kernel.
      host: transfers to and from the host, and callbacks.
      longest_sort: entries in the longest row that is sorted.
      copies: what copies, pads or converts a whole cache.
      not_in_place: names of the caches among the arguments that are not updated in place.
      exchanges: opcode and bytes of the result of every exchange between devices.
      moved: bytes that all kernels read and write, as if no cache kept any.
      temporary: bytes in use at once besides arguments and results.
      peak: bytes in use at once, all together.
      seconds: to trace, lower and compile it.
    """

    kernels: int
    of_a_layer: float
    attention: list[int | None]
    graphs: int | None
    outside: list[str]
    host: list[str]
    longest_sort: int
    copies: list[str]
    not_in_place: list[str]
    exchanges: list[tuple[str, int]]
    moved: int
    temporary: int
    peak: int
    seconds: float


class Result(NamedTuple):
    """A program of a case, compiled."""

    case: Case
    program: Program
    findings: Findings


def inspect(compiled: jax.stages.Compiled, seconds: float, dump: Path) -> Findings:
    """Reads a program that took `seconds` to compile, and the folder into which the compiler for
    GPUs wrote its schedule."""
    module, graphs = read_module(compiled.as_text() or ""), read_graphs(dump)
    memory = compiled.memory_analysis()
    assert memory is not None  # compilers of all platforms report it
    in_use = memory.argument_size_in_bytes + memory.output_size_in_bytes
    in_use += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    by_layer: collections.Counter[int | None] = collections.Counter()
    outside: list[str] = []
    for run in module.runs:
        name = run.instruction.name
        launches = 1 if graphs is None else graphs.launches.get(name, 0)
        by_layer[layer_of(run.scope)] += launches
        if graphs is not None and name not in graphs.inside:
            outside += [_name(run)] * launches
    targets = [(x, x.instruction.attribute("custom_call_target")) for x in module.runs]
    pallas = [x.scope for x, target in targets if _PALLAS.search(target)]
    caches = {
        at: x.arrays[0]
        for at, x in module.arguments.items()
        if _CACHE.search(x.attribute("op_name")) and len(x.arrays[0].lengths) > 2
    }
    return Findings(
        kernels=by_layer.total(),
        of_a_layer=statistics.median([n for i, n in by_layer.items() if i is not None] or [0]),
        attention=[layer_of(scope) for scope in pallas if "attention/pallas_call" in scope],
        graphs=None if graphs is None else graphs.count,
        outside=outside,
        host=[_name(x) for x, name in targets if _HOST.search(name or x.instruction.opcode)],
        longest_sort=max((_sorted(x) for run in module.runs for x in run.all), default=0),
        copies=[_name(x) for x in module.runs if any(_copies(x, c) for c in {*caches.values()})],
        not_in_place=[
            module.arguments[at].attribute("op_name") for at in caches.keys() - module.in_place
        ],
        exchanges=list(_exchanges(module)),
        moved=sum(run.moved for run in module.runs),
        temporary=memory.temp_size_in_bytes,
        peak=getattr(memory, "peak_memory_in_bytes", 0) or in_use,
        seconds=seconds,
    )


def layer_of(scope: str) -> int | None:
    """Returns the target's layer in a path of named scopes."""
    match = None if _DRAFT.search(scope) else _LAYER.search(scope)
    return int(match[1]) if match else None


def _exchanges(module: Module) -> Iterator[tuple[str, int]]:
    """Yields a program's exchanges; of one that starts and ends in two instructions the first
    counts."""
    for x in (x for run in module.runs for x in run.all):
        if match := _COLLECTIVE.fullmatch(x.opcode):
            results = list(x.arrays)
            if match[2] and match[1] != "all-reduce":
                results = [array for array in results if array.lengths]  # the others are state
                results = results[len(results) // 2 :]  # without the operands
            yield match[1], sum(y.size for y in results)


def read_graphs(folder: Path) -> Graphs | None:
    """Reads XLA's schedule of the only program that was dumped into a folder, if there is one; the
    module does not show what is launched, and which of it in CUDA graphs. The schedule has a line
    per thunk with its number and kind, a graph's indented below it; text protos give a thunk's
    number the instruction's name."""
    schedules = list(folder.glob("*.thunk_sequence_after_thunk_passes.txt"))
    protos = list(folder.glob("*.thunk_metadata.txt"))
    if len(schedules) != 1 or len(protos) != 1:
        return None
    names: dict[int, str] = {}
    for text in protos[0].read_text().split("thunk_metadata {")[1:]:
        name, kind, number = (
            re.search(rf"\b{field}: \"?([^\"\s]+)", text)
            for field in ("profile_annotation", "thunk_kind", "thunk_id")
        )
        if name and kind and kind[1] not in _STRUCTURE:
            names[int(number[1]) if number else 0] = name[1]
    graphs, inside, graph = 0, set(), None
    for thunk in re.finditer(r"^( *)(\d+): (k\w+)", schedules[0].read_text(), re.MULTILINE):
        indent = len(thunk[1])
        if graph is not None and indent <= graph:
            graph = None
        if thunk[3] == "kCommandBuffer":
            graphs, graph = graphs + 1, indent
        elif graph is not None and int(thunk[2]) in names:
            inside.add(names[int(thunk[2])])
    return Graphs(graphs, inside, dict(collections.Counter(names.values())))


def _name(run: Run) -> str:
    """Returns the scopes that a run comes from, without JAX's own, and the instruction."""
    scopes = [part for part in run.scope.split("/")[:-1] if not re.search(r"[()]", part)]
    return "/".join([*scopes, run.instruction.name])


def _sorted(x: Instruction) -> int:
    """Length of the axis that a sort sorts."""
    match = re.search(r"dimensions=\{(\d+)\}", x.rest) if x.opcode == "sort" else None
    return x.arrays[0].lengths[int(match[1])] if match else 0


def _copies(run: Run, cache: Array) -> bool:
    """Returns whether a run writes an array like a cache, in any type and order of its axes and
    perhaps padded along one, that it does not update in place."""
    x = run.instruction
    # Kernels update their operands, which XLA copies first if it must; a copy to or from a TPU's
    # vector memory is a prefetch.
    if x.opcode in ("custom-call", "slice-start") or _COLLECTIVE.fullmatch(x.opcode):
        return False
    if any(each.opcode in _SUMS for each in run.all):
        return False  # scores may have as many numbers as a cache
    if x.opcode == "copy-start" and any(array.on_chip for array in x.arrays):
        return False
    updated = {array for each in run.all if each.opcode in _UPDATES for array in each.arrays}
    lengths = collections.Counter(cache.lengths)
    return any(
        (lengths - collections.Counter(array.lengths)).total() <= 1
        and len(array.lengths) == len(cache.lengths)
        and cache.elements <= array.elements < 2 * cache.elements
        for array in set(x.arrays) - updated
        if not array.on_chip
    )


_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s32": 4}
_BYTES |= {"u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([^}]*)\})?")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ALIASED = re.compile(r"\{[\d,]*\}: \((\d+), \{[\d,]*\}")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r"\b(?:calls|condition|body|(?:true|false)_computation)=%?([\w.\-]+)")

# Instructions that run nothing, or whose work is another's.
_FREE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all"}
_FREE |= {"add-dependency", "partition-id", "while", "conditional", "call"}
_FREE_CALLS = {"AllocateBuffer", "AssumeGatherIndicesInBound"}


class Array(NamedTuple):
    """An array of a printed shape: its dtype, such as bf16, the lengths of its axes, and whether it
    lies in a TPU's vector memory, which is not the device's memory."""

    dtype: str
    lengths: tuple[int, ...]
    on_chip: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.lengths)

    @property
    def size(self) -> int:
        """Bytes."""
        return _BYTES[self.dtype] * self.elements


class Instruction(NamedTuple):
    """A line of a computation: its unique name, the arrays of its result without tokens, its
    opcode, and its operands and attributes as printed."""

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    rest: str

    def attribute(self, name: str) -> str:
        """Returns the value of an attribute without spaces; empty if there is none."""
        match = re.search(rf'\b{name}=(?:"([^"]*)"|%?([\w.\-]+))', self.rest)
        return next(filter(None, match.groups()), "") if match else ""

    @property
    def size(self) -> int:
        """Bytes of the result, without the room that a library's product asks for to work in."""
        of_library = self.attribute("custom_call_target").startswith("__cublas")
        return sum(x.size for x in (self.arrays[:1] if of_library else self.arrays))

    @property
    def operands(self) -> list[str]:
        """The names of the instructions that it reads."""
        return _OPERAND.findall(re.split(r"\)(?:,|$)", self.rest, maxsplit=1)[0])

    @property
    def trips(self) -> int:
        """How often a loop's body runs, 1 if the compiler does not know."""
        match = _TRIPS.search(self.rest)
        return int(match[1]) if match else 1

    @property
    def called(self) -> list[str]:
        """The computations that it runs: a fusion's, a call's, a loop's or the branches'. Before a
        round of a loop whose number is known no condition is computed."""
        match = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
        names = re.findall(r"[\w.\-]+", match[1]) if match else []
        applied = [self.attribute("to_apply")] if self.opcode in ("call", "async-start") else []
        called = _CALLED.findall(self.rest)
        if _TRIPS.search(self.rest):
            called.remove(self.attribute("condition"))
        return [*names, *called, *filter(None, applied)]


class Run(NamedTuple):
    """An instruction that runs something, what is inside, if it is a fusion, and the bytes that it
    reads and writes, over all rounds of the loop that it is in."""

    instruction: Instruction
    inside: list[Instruction]
    moved: int

    @property
    def all(self) -> list[Instruction]:
        """The instruction and what is inside."""
        return [self.instruction, *self.inside]

    @property
    def scope(self) -> str:
        """The named scopes of the source and the operation, such as jit(step)/verify/layer_0/add:
        the instruction's, otherwise of what a fusion computes last."""
        scopes = (x.attribute("op_name") for x in (self.instruction, *self.inside[::-1]))
        return next(filter(None, scopes), "")


class Module(NamedTuple):
    """A compiled program: its arguments by number, the numbers of those that share memory with
    results, and what runs; a loop's body and all branches of a condition count once."""

    arguments: dict[int, Instruction]
    in_place: set[int]
    runs: list[Run]


def read_module(text: str) -> Module:
    """Reads what `jax.stages.Compiled.as_text` prints."""
    header, *lines = text.splitlines()
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", []
    for line in lines:
        if head := re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", line):
            body = computations[head[2]] = []
            entry = head[2] if head[1] else entry
        elif match := _INSTRUCTION.match(line):
            body.append(Instruction(match[1], arrays(match[2]), match[3], match[4]))
    if not entry:
        raise ValueError("the text of an XLA module has no entry computation")
    arguments = {
        int(x.rest.partition(")")[0]): x for x in computations[entry] if x.opcode == "parameter"
    }
    in_place = {int(at) for at in re.findall(r"\((\d+), \{[\d,]*\}, (?:may|must)-", header)}
    return Module(arguments, in_place, list(_runs(computations, entry)))


def _runs(computations: dict[str, list[Instruction]], name: str, rounds: int = 1) -> Iterator[Run]:
    body = computations.get(name, [])
    known = {x.name: x for x in body}
    for x in body:
        parts = [part for part in x.called if part in computations]
        free = x.opcode in _FREE or x.opcode.endswith("-done")
        if x.opcode == "fusion":
            inside = computations.get(parts[0], []) if parts else []
            yield Run(x, inside, rounds * _moved_inside(inside))
        elif parts:
            for part in parts:
                yield from _runs(computations, part, rounds * x.trips)
        elif not free and x.attribute("custom_call_target") not in _FREE_CALLS:
            # What is updated in place may be any part of it: the rest of the operands.
            aliased = {int(at) for at in _ALIASED.findall(x.rest)}
            operands = [known[name].size for name in x.operands if name in known]
            same = sum(size for i, size in enumerate(operands) if i in aliased)
            yield Run(x, [], rounds * (sum(operands) + x.size - 2 * same))


def _moved_inside(body: list[Instruction]) -> int:
    """Returns the bytes that a fusion reads and writes: of an array that it only takes parts of,
    these, and of one that it updates in place, what it writes."""
    known = {x.name: x for x in body}
    users = collections.defaultdict(list)
    for x in body:
        for operand in x.operands:
            users[operand].append(x)

    def read(x: Instruction) -> float:
        """The share of an array that is read."""
        share = 0.0 if users[x.name] else 1.0
        for user in users[x.name]:
            if user.operands[0] != x.name or user.opcode not in _AS_IT_IS | _PARTS | _UPDATES:
                return 1
            if user.opcode not in _UPDATES:
                share += read(user) * user.arrays[0].elements / x.arrays[0].elements
        return min(share, 1)

    def written(x: Instruction) -> int:
        match x.opcode:
            case "bitcast":
                return written(known[x.operands[0]])
            case "tuple":
                return sum(written(known[operand]) for operand in x.operands)
            case "dynamic-update-slice":
                return known[x.operands[1]].size
            case "scatter":
                return known[x.operands[2]].size
        return x.size

    if not body:
        return 0
    return round(sum(read(x) * x.size for x in body if x.opcode == "parameter")) + written(body[-1])


def arrays(shape: str) -> tuple[Array, ...]:
    """Returns the arrays of a printed shape, from left to right."""
    parts = (x for x in _ARRAY.findall(shape) if x[0] in _BYTES)
    return tuple(
        Array(dtype, tuple(map(int, filter(None, axes.split(",")))), "T(" in at and "S(1)" in at)
        for dtype, axes, at in parts
    )
