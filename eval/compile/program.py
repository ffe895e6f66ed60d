"""The program `eval.compile`: compiles, prints and writes the report."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.tables import narrow, show
from dart_jax.progress import stage
from eval.compile.cases import Case, lower
from eval.compile.config import CompileConfig, Program
from eval.compile.devices import (
    ACCELERATORS,
    Accelerator,
    compile_lowered,
    compile_only,
    described,
)
from eval.compile.findings import Result, inspect
from eval.latency.shapes import Cost

_CAPTION = (
    "layer: kernels in a layer of the target, the median; graphs: CUDA graphs; temp: MB besides "
    "weights and caches; moved: MB read and written, as if no cache kept any; least: how many "
    "times what a step must move; ms: a step's time, computed: what it moves at the device's "
    "bandwidth, or its products at its rate"
)
_SENT = "; sent: KB of results of exchanges between devices"


def programs(config: CompileConfig) -> list[tuple[Case, Program]]:
    """Lists what to compile: plain decoding has no tree, so it is in there once; only methods
    that search trees have a search."""
    some = config.shape, config.weights, config.context, config.batch_size
    settings = itertools.product(*some, config.method, config.tree_nodes)
    execution = ACCELERATORS[config.device].execution
    stored = {
        name: dataclasses.replace(
            execution, weights=dataclasses.replace(execution.weights, dtype=name)
        )
        for name in config.weights
    }
    cases = [
        Case(
            shape.lower(),
            method,
            0 if method == "plain" else nodes,
            batch,
            context,
            dtype=ACCELERATORS[config.device].dtype,
            level=config.sampling,
            layers=config.layers,
            execution=stored[weights],
        )
        for shape, weights, context, batch, method, nodes in settings
    ]
    every = itertools.product(dict.fromkeys(cases), config.program)
    return [(case, name) for case, name in every if name != "search" or case.config.searches]


def run(config: CompileConfig, console: Console) -> list[Result]:
    """Compiles, prints and writes the report, anew after each program; raises UserError if that
    cannot be written, or the device's compiler is not installed."""
    check_outputs(config.json)
    shape, accelerator = MeshShape.parse(config.mesh), ACCELERATORS[config.device]
    devices = compile_only(config.device, shape.data * shape.model)
    mesh = shape.make(devices) if shape.data * shape.model > 1 else None
    where = f"{config.mesh}, {accelerator.title}" if mesh is not None else accelerator.title
    results: list[Result] = []
    output: list[Table] = []
    for alone, name in programs(config):
        case = alone.on(mesh)
        title = f"{case.shape}, {case.method}, {name}"
        with stage(f"compiling {title}", console), tempfile.TemporaryDirectory() as dump:
            began = time.perf_counter()
            with described(accelerator):
                lowered = lower(case, name, devices[0])
            compiled = compile_lowered(lowered, accelerator, Path(dump))
            findings = inspect(compiled, time.perf_counter() - began, Path(dump))
        results.append(Result(case, name, findings))
        output = list(tables(results, accelerator, where))
        content = [
            {
                **dataclasses.asdict(x.case.on(None)),
                "program": x.program,
                **dataclasses.asdict(x.findings),
                **_computed(x, accelerator),
            }
            for x in results
        ]
        write_report(config, f"Programs compiled for {where}", output, programs=content)
        jax.clear_caches()
    show(console, *output)
    return results


def _computed(result: Result, accelerator: Accelerator) -> dict[str, float]:
    """Returns, of a step, the bytes that it must move, 0 where that is not known, and the seconds
    in which the device reads those that it moves, if no cache kept any, or computes its products,
    as far as these are known, whichever is longer."""
    if result.program != "step":
        return {}
    work = Cost(result.findings.moved, result.case.cost.operations)
    seconds = work.limit(accelerator.bandwidth, accelerator.rate)
    return {"least": result.case.cost.bytes, "computed_seconds": seconds}


def tables(results: Sequence[Result], accelerator: Accelerator, where: str) -> Iterator[Table]:
    """Yields a table for each shape, way to store weights and context."""

    def setting_of(result: Result) -> str:
        stored = "int8" if result.case.execution.weights.int8 else result.case.dtype
        return f"{result.case.shape}, {stored}, context {result.case.context}"

    on_mesh = any(result.case.execution.devices.mesh is not None for result in results)
    for setting, group in itertools.groupby(results, setting_of):
        rows = []
        for result in group:
            case, name, x = result
            computed = _computed(result, accelerator)
            least, seconds = computed.get("least", 0), computed.get("computed_seconds", 0)
            rows.append(
                [
                    *(f"{case.method} {name}", str(case.batch), str(case.nodes or "-")),
                    *(f"{x.kernels:,}", f"{x.of_a_layer:g}"),
                    *("-" if x.graphs is None else str(x.graphs), f"{x.temporary / 1e6:,.0f}"),
                    *(f"{x.moved / 1e6:,.0f}", f"{x.moved / least:.2f}" if least else "-"),
                    f"{1e3 * seconds:.2f}" if seconds else "-",
                    *([f"{sum(size for _, size in x.exchanges) / 1e3:,.0f}"] if on_mesh else []),
                ]
            )
        columns = [
            "program",
            "batch",
            "tree",
            "kernels",
            "layer",
            "graphs",
            "temp",
            "moved",
            "least",
            "ms",
        ]
        columns += ["sent"] if on_mesh else []
        caption = _CAPTION + _SENT * on_mesh
        yield narrow(f"{setting}, compiled for {where}", columns, rows, caption)
