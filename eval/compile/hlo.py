"""Reads the text of an optimised XLA module: which instructions run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s32": 4}
_BYTES |= {"u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([^}]*)\})?")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
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
        """The value of an attribute without spaces; empty if there is none."""
        match = re.search(rf'\b{name}=(?:"([^"]*)"|%?([\w.\-]+))', self.rest)
        return next(filter(None, match.groups()), "") if match else ""

    @property
    def called(self) -> list[str]:
        """The computations that it runs: a fusion's, a call's, a loop's or the branches'."""
        match = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
        names = re.findall(r"[\w.\-]+", match[1]) if match else []
        applied = [self.attribute("to_apply")] if self.opcode in ("call", "async-start") else []
        return [*names, *_CALLED.findall(self.rest), *filter(None, applied)]


class Run(NamedTuple):
    """An instruction that runs something, and what is inside, if it is a fusion."""

    instruction: Instruction
    inside: list[Instruction]

    @property
    def all(self) -> list[Instruction]:
        """The instruction and what is inside."""
        return [self.instruction, *self.inside]

    @property
    def scope(self) -> str:
        """The named scopes of the source and the operation, such as jit(step)/verify/layer_0/add:
        the instruction's, otherwise those of what a fusion computes last."""
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


def _runs(computations: dict[str, list[Instruction]], name: str) -> Iterator[Run]:
    for x in computations.get(name, []):
        parts = [part for part in x.called if part in computations]
        free = x.opcode in _FREE or x.opcode.endswith("-done")
        if x.opcode == "fusion":
            yield Run(x, computations.get(parts[0], []) if parts else [])
        elif parts:
            for part in parts:
                yield from _runs(computations, part)
        elif not free and x.attribute("custom_call_target") not in _FREE_CALLS:
            yield Run(x, [])


def arrays(shape: str) -> tuple[Array, ...]:
    """The arrays of a printed shape, from left to right."""
    parts = (x for x in _ARRAY.findall(shape) if x[0] in _BYTES)
    return tuple(
        Array(dtype, tuple(map(int, filter(None, axes.split(",")))), "T(" in at and "S(1)" in at)
        for dtype, axes, at in parts
    )
