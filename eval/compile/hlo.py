"""Reads the text of an optimised XLA module: its instructions and computations."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import NamedTuple

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2}
_BYTES |= {"u16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8}
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_PACKAGE = "/dart_jax/"


class Array(NamedTuple):
    """An array of a printed shape.

    Attributes:
      dtype: as XLA prints it, such as bf16.
      lengths: of its axes.
      on_chip: whether it lies in a TPU's vector memory, which is not the device's memory.
    """

    dtype: str
    lengths: tuple[int, ...]
    on_chip: bool = False

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.lengths)

    @property
    def size(self) -> int:
        """Bytes in the device's memory."""
        return 0 if self.on_chip else int(_BYTES[self.dtype] * self.count)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: unique in the module.
      shape: of its result, as printed; a tuple's in parentheses.
      opcode: such as fusion.
      operands: names of other instructions of the same computation.
      attributes: the rest of the line.
      root: whether it is the computation's result.
      number: a parameter's number; -1 for others.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool
    number: int = -1

    @property
    def size(self) -> int:
        """Bytes of its result in the device's memory."""
        return shape_size(self.shape)

    @property
    def logical_size(self) -> int:
        """Bytes of its result, wherever it lies."""
        return sum(array._replace(on_chip=False).size for array in arrays(self.shape))

    @property
    def index(self) -> int:
        """Which element of a tuple it takes."""
        return int(self.attribute("index") or 0)

    def attribute(self, name: str) -> str:
        """The value of an attribute without spaces; empty if there is none."""
        found = re.search(rf'\b{name}=(?:"([^"]*)"|%?([\w.\-]+))', self.attributes)
        return next(filter(None, found.groups()), "") if found else ""

    @property
    def called(self) -> str:
        """The computation that it runs: a fusion's, a call's, or a loop's body."""
        return self.attribute("calls") or self.attribute("to_apply") or self.attribute("body")

    @property
    def trips(self) -> int:
        """How often a loop runs, where the compiler knows it; otherwise 1."""
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(found[1]) if found else 1

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional."""
        found = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        names = found[1].split(",") if found else []
        names += [self.attribute("true_computation"), self.attribute("false_computation")]
        return [name.strip().lstrip("%") for name in names if name.strip()]

    @property
    def updates(self) -> dict[int, int]:
        """Number of a result -> the operand whose memory it takes, of a custom call."""
        found = re.search(r"output_to_operand_aliasing=\{(.*?\))\}", self.attributes)
        pairs = re.findall(r"\{(\d*)\}: \((\d+)", found[1]) if found else []
        return {int(result or 0): int(operand) for result, operand in pairs}

    @property
    def estimate(self) -> int | None:
        """Bytes that a custom call moves, by the estimate that Pallas passes on for TPUs."""
        found = re.search(r'"cost_estimate":\{[^}]*"bytes_accessed":"?(\d+)', self.attributes)
        return int(found[1]) if found else None

    @property
    def backend_kind(self) -> str:
        """The kind of a GPU's fusion that is not XLA's own loop, such as __triton_gemm."""
        found = re.search(r'"kind":"(\w+)"', self.attributes)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
      computations: name -> instructions, each after its operands.
      entry: name of the computation that runs.
      header: the first line, with what is updated in place.
      frames: number of a stack frame -> the file and line of its source, in `dart_jax` if it was
        called from there.
    """

    computations: dict[str, list[Instruction]]
    entry: str
    header: str
    frames: dict[int, str]

    @functools.cached_property
    def named(self) -> dict[str, dict[str, Instruction]]:
        """Computation -> name -> instruction."""
        return {
            computation: {each.name: each for each in body}
            for computation, body in self.computations.items()
        }

    @property
    def updated_in_place(self) -> list[int]:
        """Numbers of the arguments that share their memory with results."""
        return [int(at) for at in re.findall(r"\((\d+), \{[\d,]*\}, (?:may|must)-", self.header)]

    def arguments(self) -> dict[int, Array]:
        """Number of an argument -> its array."""
        body = self.computations[self.entry]
        parameters = (each for each in body if each.opcode == "parameter")
        return {each.number: found[0] for each in parameters if (found := arrays(each.shape))}


def arrays(shape: str) -> list[Array]:
    """The arrays of a printed shape, from left to right; tokens are left out."""
    return [
        Array(
            dtype,
            tuple(int(length) for length in axes.split(",") if length),
            "T(" in layout and "S(1)" in layout,
        )
        for dtype, axes, layout in _ARRAY.findall(shape)
        if dtype in _BYTES
    ]


def shape_size(shape: str) -> int:
    """Bytes of a printed shape: of all arrays, if it is a tuple's."""
    return sum(array.size for array in arrays(shape))


def read_module(text: str) -> Module:
    """Reads what `jax.stages.Compiled.as_text` prints."""
    lines = text.splitlines()
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", None
    for line in lines:
        if body is None:
            head = re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", line)
            if head:
                body = computations[head[2]] = []
                entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            body = None
        elif " = " in line:
            body.append(_read_instruction(line))
    if not entry:
        raise ValueError("the text of an XLA module has no entry computation")
    return Module(computations, entry, lines[0], _read_frames(lines))


def _read_frames(lines: list[str]) -> dict[int, str]:
    """Reads the tables before the computations: file names, places in them, and stack frames."""
    tables: dict[str, dict[int, str]] = {}
    table: dict[int, str] = {}
    for line in lines[1:]:
        if line.startswith(("%", "ENTRY")):
            break
        if re.fullmatch(r"[A-Z]\w+", line):
            table = tables[line] = {}
        elif found := re.match(r"(\d+) (.*)", line):
            table[int(found[1])] = found[2]

    def number(name: str, text: str) -> int:
        found = re.search(rf"\b{name}=(\d+)", text)
        return int(found[1]) if found else -1

    places, parents = {}, {}
    for frame, text in tables.get("StackFrames", {}).items():
        place = tables["FileLocations"].get(number("file_location_id", text), "")
        file = tables["FileNames"].get(number("file_name_id", place), "").strip('"')
        places[frame] = file, number("line", place)
        parents[frame] = number("parent_frame_id", text) - 1  # 0: none
    return {frame: _source(frame, places, parents) for frame in places}


def _source(frame: int, places: dict[int, tuple[str, int]], parents: dict[int, int]) -> str:
    """The innermost place in this package; without any, the innermost place."""
    chain = [frame]
    while (parent := parents.get(chain[-1], 0)) in places and parent not in chain:
        chain.append(parent)
    ours = (places[each] for each in chain if _PACKAGE in places[each][0])
    file, line = next(ours, places[frame])
    return f"{file.rpartition('/')[2]}:{line}" if file else ""


def _read_instruction(line: str) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    close = _closing(rest, len(opcode))
    inside = rest[len(opcode) + 1 : close]
    return Instruction(
        name=left.removeprefix("ROOT ").lstrip("%"),
        shape=shape,
        opcode=opcode,
        operands=tuple(_NAME.findall(inside)),
        attributes=rest[close + 1 :],
        root=left.startswith("ROOT "),
        number=int(inside) if opcode == "parameter" else -1,
    )


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` is closed."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError(f"no closing parenthesis in {text[start : start + 60]!r}")
