"""The program `eval.compile`: compiles, prints and writes the report."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.progress import stage
from eval.compile.cases import Case, lower
from eval.compile.config import CompileConfig, Program
from eval.compile.devices import ACCELERATORS, compile_lowered, compile_only, described
from eval.compile.findings import Result, inspect
from eval.latency.report import narrow

_CAPTION = (
    "layer: kernels in a layer of the target, the median; Pallas: kernels of ours; graphs: CUDA "
    "graphs; rest: kernels outside of these; host: transfers and callbacks; sort: entries in the "
    "longest row that is sorted; peak: MB in use at once, of each device; sent: exchanges between "
    "devices, and KB of their results"
)


def programs(config: CompileConfig) -> list[tuple[Case, Program]]:
    """Lists what to compile: plain decoding has no tree, so it is in there once; only methods
    that search trees have a search."""
    some = config.shape, config.weights, config.context, config.batch_size
    settings = itertools.product(*some, config.method, config.tree_nodes)
    execution = ACCELERATORS[config.device].execution
    cases = [
        Case(
            shape.lower(),
            method,
            0 if method == "plain" else nodes,
            batch,
            context,
            config.prompt,
            level=config.sampling,
            layers=config.layers,
            search=config.search,
            execution=dataclasses.replace(
                execution, weights=dataclasses.replace(execution.weights, dtype=weights)
            ),
        )
        for shape, weights, context, batch, method, nodes in settings
    ]
    every = itertools.product(dict.fromkeys(cases), config.program)
    return [(case, name) for case, name in every if name != "search" or case.config.searches]


def run(config: CompileConfig, console: Console) -> list[Result]:
    """Compiles, prints and writes the report.

    Raises:
      UserError: the report cannot be written, or the device's compiler is not installed.
    """
    check_outputs(config.json)
    shape, accelerator = MeshShape.parse(config.mesh), ACCELERATORS[config.device]
    devices = compile_only(config.device, shape.data * shape.model)
    mesh = shape.make(devices) if shape.data * shape.model > 1 else None
    results = []
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
        jax.clear_caches()
    where = f"{config.mesh}, {accelerator.title}" if mesh is not None else accelerator.title
    output = list(tables(results, where))
    console.print(*output)
    title = f"Programs compiled for {where}"
    write_report(config, title, output, programs=[_as_json(result) for result in results])
    return results


def tables(results: Sequence[Result], where: str) -> Iterator[Table]:
    """Yields a table for each shape, way to store weights and context."""
    for setting, group in itertools.groupby(results, _setting):
        rows = []
        for case, name, x in group:
            graphs = ["-", "-"] if x.graphs is None else [str(x.graphs), f"{len(x.outside):,}"]
            sent = [len(x.collectives), sum(y.bytes for y in x.collectives) / 1e3]
            rows.append(
                [
                    *(f"{case.method} {name}", str(case.batch), str(case.nodes or "-")),
                    *(f"{x.kernels:,}", f"{x.of_a_layer:g}", str(x.pallas), *graphs),
                    *(str(len(x.host)), f"{x.longest_sort:,}", f"{x.peak / 1e6:,.0f}"),
                    *(f"{number:,.0f}" for number in sent),
                ]
            )
        columns = "program batch tree kernels layer Pallas graphs rest host sort peak sent KB"
        yield narrow(f"{setting}, compiled for {where}", columns.split(), rows, _CAPTION)


def _setting(result: Result) -> str:
    case = result.case
    stored = "int8" if case.execution.weights.int8 else case.dtype
    return f"{case.shape}, {stored}, context {case.context}"


def _as_json(result: Result) -> dict[str, Any]:
    setting = dataclasses.asdict(result.case.on(None))
    exchanges = [x._asdict() for x in result.findings.collectives]
    figures = dataclasses.asdict(result.findings) | {"collectives": exchanges}
    return {**setting, "program": result.program, **figures}
