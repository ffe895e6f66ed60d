"""Compiles for eight virtual devices; a program, since JAX fixes their number at startup.

    python sharded_compile.py greedy plain
    python sharded_compile.py full dart step

Prints JSON: what the devices exchange, what `--check` says, and the bytes of a device's part of
a row of logits. With `greedy`, of a
step of the tiny shape; with `full`, of a program that draws tokens of a vocabulary of 151,936 with
all filters, penalties and a bias.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from dart_jax.models.sharding.mesh import MeshShape
from eval.compile.cases import Case, lower
from eval.compile.check import violations
from eval.compile.findings import Result, inspect


def main(level: Any, method: Any, program: Any = "step") -> None:
    mesh = MeshShape(data=2, model=4).make()
    shape, nodes = "tiny" if level == "greedy" else "qwen3-0.6b", 8 if method == "dart" else 0
    case = Case(shape, method, nodes, 4, 50, 16, "float32", level, layers=7)
    case = case.on(mesh)
    compiled = lower(case, program, None).compile()
    findings = inspect(compiled, 1.0, Path(tempfile.mkdtemp()))
    report = {
        "violations": list(violations(Result(case, program, findings))),
        "exchanges": findings.exchanges,
        "part": 4 * case.config.target.vocab_size // 4,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
