"""Compile the programs of decoding for a GPU or TPU that is not there, and show what they would do.

    python -m eval.compile
    python -m eval.compile --device v6e --method dart --program step
    python -m eval.compile --shape tiny --program step loop --check
    python -m eval.compile --shape llama-3.1-70b --mesh data=1,model=8 --layers 8 --check

Nothing is allocated or run: XLA is told what the device is like. Without the device it cannot time
the ways to compute a matrix product and chooses by its own model of costs; what is fused, copied,
updated in place and moved through memory is what the device would run.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError
from dart_jax.models.sharding.mesh import DATA, MODEL, MeshShape
from dart_jax.models.sharding.rules import check_divides
from dart_jax.programs.command_line import check_least, check_some, parse, program
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.progress import stage
from eval.compile.cases import Case, Level, Method, Program, lower
from eval.compile.check import violations
from eval.compile.devices import ACCELERATORS, compile_lowered, compile_only, described
from eval.compile.findings import Result, inspect
from eval.latency.cost import Cost, costs
from eval.latency.report import narrow
from eval.latency.shapes import target_of

_KERNELS = (
    "layer: kernels in a layer of the target, the median; Pallas: kernels of ours; graphs: CUDA "
    "graphs; rest: kernels outside of these; host: transfers and callbacks; sort: entries in the "
    "longest row that is sorted"
)
_WORK = (
    "of each device; Gop: operations of a step's matrix products, by the shapes; moved: bytes that "
    "the kernels of a step read and write, over the least by the shapes; args: MB of weights, "
    "caches and the rest of the state; temp: MB besides these and results; peak: MB in use at "
    "once; sent: exchanges between devices, and KB of their results; s: to compile"
)


@dataclasses.dataclass(frozen=True)
class CompileConfig:
    """The programs to compile, and the device."""

    device: Literal["h200", "b200", "v5e", "v6e"] = "h200"
    """GPUs need the extra aot, TPUs the extra tpu (in an environment without CUDA's)."""
    shape: tuple[str, ...] = ("qwen3-8b",)
    """Shapes of models: demo, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, -30b-a3b,
    -235b-a22b, llama-3-8b, llama-3-70b, llama-3.1-70b, tiny."""
    method: tuple[Method, ...] = ("plain", "dart")
    """Ways to draft."""
    program: tuple[Program, ...] = ("step",)
    """prefill (a chunk of prompts), step (verify and draft), search (of the trees), loop (a burst
    of up to 64 steps, as of generate), or serve (one of up to 4, with caches in pages of 64)."""
    batch_size: tuple[int, ...] = (1,)
    """Sequences decoded together."""
    tree_nodes: tuple[int, ...] = (60,)
    """Nodes of the draft tree, beside the root."""
    context: tuple[int, ...] = (2048,)
    """Cached tokens of each sequence."""
    prompt: int = 1024
    """Tokens of the prefill. More than 512 are read in chunks, of which the last is compiled."""
    weights: tuple[Literal["stored", "int8"], ...] = ("stored",)
    """Storage of the weights of linear layers and experts: in bfloat16, or in 8 bits."""
    sampling: Level = "greedy"
    """Sampling of tokens: greedy; filtered, by temperature, top-k, top-p and min-p; or full, also
    with a bias of logits and the penalties for which a server's requests may ask."""
    layers: int | None = None
    """Compile only so many layers of the target, to be quicker; at least 7."""
    mesh: str = "data=1,model=1"
    """Devices that decode together, such as data=1,model=8; programs: all but search."""
    check: bool = False
    """Exit with status 1 if a program copies a cache or does not update it in place, sorts the
    whole vocabulary, exchanges data with the host, has no kernel for the
    attention of a layer, runs a step in more than one CUDA graph or outside of it, or exchanges
    more among devices than two sums a layer, the largest logits, the drafter's sums and its
    likeliest tokens, or a few numbers of each row if tokens are drawn."""
    max_kernels_a_layer: float = float("inf")
    """Also exit with status 1 if a layer of the target has more kernels."""
    json: Path | None = None
    """Write all figures to this file."""

    def __post_init__(self) -> None:
        for name in self.shape:
            target_of(name)
        check_least(self, batch_size=1, tree_nodes=1, context=1, prompt=1)
        check_some(self, "batch_size", "tree_nodes", "context")
        if self.layers is not None and self.layers < 7:
            raise UserError("--layers must be at least 7: a drafter reads three different ones")
        if self.max_kernels_a_layer < float("inf") and not self.check:
            raise UserError("--max-kernels-a-layer needs --check")
        mesh = MeshShape.parse(self.mesh)
        if mesh.data * mesh.model == 1:
            return
        ACCELERATORS[self.device].topology(mesh.data * mesh.model)
        if "search" in self.program:
            raise UserError("--program search runs on one device; leave --mesh out")
        for name in self.shape:
            check_divides(target_of(name), AbstractMesh(mesh, (DATA, MODEL)))
        for batch in self.batch_size:
            if batch % mesh.data:
                raise UserError(
                    f"{mesh.data} groups of devices cannot share a batch of {batch} evenly; change "
                    "--batch-size or --mesh"
                )

    def programs(self) -> list[tuple[Case, Program]]:
        """Lists what to compile: plain decoding has no tree, so it is in there once; only methods
        that search trees have a search."""
        settings = itertools.product(
            self.shape, self.weights, self.context, self.batch_size, self.method, self.tree_nodes
        )
        execution = ACCELERATORS[self.device].execution
        cases = [
            Case(
                shape.lower(),
                method,
                0 if method == "plain" else nodes,
                batch,
                context,
                self.prompt,
                level=self.sampling,
                layers=self.layers,
                execution=dataclasses.replace(
                    execution, weights=dataclasses.replace(execution.weights, dtype=weights)
                ),
            )
            for shape, weights, context, batch, method, nodes in settings
        ]
        every = itertools.product(dict.fromkeys(cases), self.program)
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
    for alone, name in config.programs():
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
    """Yields two tables for each shape, way to store weights and context."""
    for setting, group in itertools.groupby(results, _setting):
        names, kernels, work = ["program", "batch", "tree"], [], []
        for case, name, x in group:
            first = [f"{case.method} {name}", str(case.batch), str(case.nodes or "-")]
            graphs = ["-", "-"] if x.graphs is None else [str(x.graphs), f"{len(x.outside):,}"]
            counts = f"{x.kernels:,}", f"{x.of_a_layer:g}", str(x.pallas)
            kernels.append([*first, *counts, *graphs, str(len(x.host)), f"{x.longest_sort:,}"])
            megabytes = [f"{size / 1e6:,.0f}" for size in (x.arguments, x.temporary, x.peak)]
            steps = name in ("step", "loop", "serve") and case.method != "eagle3"
            least = _least(case) if steps else None
            operations = f"{least.operations / 1e9:,.1f}" if least else "-"
            traffic = "-"
            if least and name == "step" and case.execution.devices.mesh is None:
                traffic = f"{x.moved / least.bytes:.3f}"
            kilobytes = f"{sum(y.bytes for y in x.collectives) / 1e3:,.0f}"
            exchanges = [str(len(x.collectives)), kilobytes]
            work.append([*first, operations, traffic, *megabytes, *exchanges, f"{x.seconds:.0f}"])
        of_kernels = ["kernels", "layer", "Pallas", "graphs", "rest", "host", "sort"]
        of_work = ["Gop", "moved", "args", "temp", "peak", "sent", "KB", "s"]
        title = f"{setting}, compiled for {where}"
        yield narrow(title, [*names, *of_kernels], kernels, _KERNELS)
        yield narrow(title, [*names, *of_work], work, _WORK)


def _least(case: Case) -> Cost:
    """Returns the least work of a step: the operations of each device, the bytes of all."""
    devices = case.execution.devices.groups * case.execution.devices.shards
    least = costs(case.on(None).config, case.dtype, case.batch, case.context)["step"]
    return least._replace(operations=least.operations // devices)


def _setting(result: Result) -> str:
    case = result.case
    stored = "int8" if case.execution.weights.int8 else case.dtype
    return f"{case.shape}, {stored}, context {case.context}"


def _as_json(result: Result) -> dict[str, Any]:
    setting = dataclasses.asdict(result.case.on(None))
    exchanges = [x._asdict() for x in result.findings.collectives]
    figures = dataclasses.asdict(result.findings) | {"collectives": exchanges}
    return {**setting, "program": result.program, **figures}


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a check failed; 2: bad input, reported in one line."""
    with program():
        config = parse(CompileConfig, args, __doc__)
        jax.config.update("jax_platforms", "cpu")
        results = run(config, Console())
        if config.check:
            lines = [x for each in results for x in violations(each, config.max_kernels_a_layer)]
            for line in lines:
                print(f"failed: {line}", file=sys.stderr)
            if lines:
                sys.exit(1)
            print(f"{len(results)} programs checked")
