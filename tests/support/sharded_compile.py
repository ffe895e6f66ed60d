"""Compiles for eight virtual devices; a program, since JAX fixes their number at startup.

    python sharded_compile.py
    python sharded_compile.py dart step

Prints JSON. Of greedy steps: what the devices exchange, what `--check` says and what they hold; and
of a function that puts a weight together, its exchanges. Given a method and a program: what
`--check` says if it draws tokens of a vocabulary of 151,936 with all filters, penalties and a bias,
and what is exchanged outside of the layers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.sampling import Sampling
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import MODEL, MeshShape
from eval.compile.cases import Case
from eval.compile.check import Limits, violations
from eval.compile.collectives import collectives
from eval.compile.hlo import read_module
from eval.compile.summary import summarise


def main() -> None:
    mesh = MeshShape(data=2, model=4).make()
    method, program = [*sys.argv[1:], "", ""][:2]
    print(json.dumps(drawing(mesh, method, program) if program else greedy(mesh)))


def drawing(mesh: Mesh, method: Any, program: Any) -> dict[str, Any]:
    """The report on a program that draws tokens."""
    if program == "serve":  # in one group
        mesh = MeshShape(data=1, model=4).make(jax.devices()[:4])
    sampling = Sampling(0.8, 50, 0.9, 0.05, 1.1)
    nodes = 8 if method == "dart" else 0
    case = Case(
        "qwen3-0.6b",
        method,
        nodes,
        4,
        50,
        16,
        "float32",
        sampling,
        layers=7,
        search="device",
        penalties=program != "prefill",
    ).on(mesh)
    compiled = case.lower(program, None).compile()
    summary = summarise(case, program, compiled, 1.0, Path(tempfile.mkdtemp()))
    return {
        "violations": list(violations(summary, Limits())),
        "exchanged": [x for x in summary.collectives if x.layer is None and not x.draft],
        "drafted": [x for x in summary.collectives if x.draft],
        "part": 4 * case.config.target.vocab_size // 4,  # bytes of a device's logits of a row
    }


def greedy(mesh: Mesh) -> dict[str, Any]:
    """The report on greedy steps."""
    report: dict[str, Any] = {}
    for name, method, fused in (
        ("plain", "plain", False),
        ("dart", "dart", False),
        ("dart, projections joined", "dart", True),
    ):
        nodes, execution = 8 if method == "dart" else 0, Execution(fused=fused)
        case = Case("tiny", method, nodes, 4, 50, 16, "float32", execution=execution).on(mesh)
        compiled = case.lower("step", None).compile()
        summary = summarise(case, "step", compiled, 1.0, Path(tempfile.mkdtemp()))
        report[name] = {
            "exchanged": summary.collectives,
            "violations": list(violations(summary, Limits())),
            "arguments": summary.arguments,
            "held": case.weight_bytes + case.cache_bytes,
            "whole": case.on(None).weight_bytes,
            "least": [summary.least, case.on(None).least("step")],
        }

    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(None, MODEL)), out_specs=P())
    def whole(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.psum(x @ jax.lax.all_gather(w, MODEL, axis=1, tiled=True), MODEL)

    shapes = (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in (((4, 64), P()), ((64, 32), P(None, MODEL)))
    )
    text = jax.jit(whole).lower(*shapes).compile().as_text()
    report["whole weight"] = collectives(read_module(text or ""))
    return report


if __name__ == "__main__":
    main()
