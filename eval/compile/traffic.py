"""Bytes that a compiled program moves: what each of its kernels reads and writes, as if nothing
stayed in a cache of the device between two of them."""

from __future__ import annotations

from eval.latency.hlo import Instruction, Module, Run

# What an instruction takes of its first operand, or writes into it, by the place of the part.
_TAKES, _PUTS = {"slice", "dynamic-slice", "gather"}, {"dynamic-update-slice": 1, "scatter": 2}


def moved(module: Module) -> int:
    """Bytes read and written. A slice counts as what it takes, and an update in place as what it
    writes; kernels that are not XLA's count with their operands and results whole."""
    return sum(run.times * _of_run(run) for run in module.runs)


def _of_run(run: Run) -> int:
    body, parameters = [run.instruction], run.read
    if run.inside:
        body, parameters = run.inside, [x for x in run.inside if x.opcode == "parameter"]
    known = {x.name: x for x in (*run.read, *body)}

    def read(x: Instruction) -> int:
        """Bytes that the users of a value read of it, at most all."""
        total = 0
        for user in body:
            if x.name not in user.operands:
                continue
            first = user.operands[0] == x.name
            if user.opcode == "bitcast":
                total += read(user)
            elif first and user.opcode in _TAKES:
                total += _size(user)
            elif not (first and user.opcode in _PUTS):
                total += _size(x)
        return min(total, _size(x))

    def written(x: Instruction) -> int:
        while x.opcode == "bitcast":
            x = known[x.operands[0]]
        if x.opcode == "tuple":
            return sum(written(known[name]) for name in x.operands)
        place = _PUTS.get(x.opcode)
        return _size(x if place is None else known[x.operands[place]])

    return sum(map(read, parameters)) + written(body[-1])


def _size(x: Instruction) -> int:
    """Bytes of a result in the device's memory."""
    arrays = x.arrays[:1] if x.opcode.endswith("-start") else x.arrays  # the others are state
    if x.opcode == "custom-call" and len(arrays) > 1:
        # cuBLAS returns the memory that it works in, too.
        arrays = [a for a in arrays if not (a.dtype == "s8" and len(a.lengths) == 1)]
    return sum(array.size for array in arrays if not array.on_chip)
