"""Compile the programs of decoding for a GPU or TPU that is not there, and show what they would do.

    python -m eval.compile
    python -m eval.compile --device v6e --method dart --program step
    python -m eval.compile --shape qwen3-8b --batch-size 32 --details 20
    python -m eval.compile --shape tiny --program step loop --check
    python -m eval.compile --shape llama-3.1-70b --mesh data=1,model=8 --layers 8 --check
    python -m eval.compile --shape llama-3.1-70b --mesh model=8 --layers 8 --weights stored int8

Nothing is allocated or run: XLA is told what the device is like. Without the device it cannot time
the ways to compute a matrix product and chooses by its own model of costs; what is fused, copied,
updated in place and moved through memory is what the device would run.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
from jax.sharding import AbstractMesh
from rich.console import Console

from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.config import SearchWay
from dart_jax.errors import UserError
from dart_jax.models.sharding.mesh import DATA, MODEL, MeshShape
from dart_jax.models.sharding.rules import check_divides
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs, write_json, write_text
from dart_jax.programs.provenance import environment, revision
from dart_jax.progress import stage
from eval.compile.cases import Case, Method, Program
from eval.compile.check import Limits, violations
from eval.compile.devices import (
    ACCELERATORS,
    allow_callbacks,
    compile_lowered,
    compile_only,
    described,
)
from eval.compile.prediction import Setting
from eval.compile.report import (
    care,
    details,
    exchanges,
    launches,
    memory,
    outside_graphs,
    prediction,
    room,
    traffic,
)
from eval.compile.summary import Summary, summarise
from eval.latency.devices import check_batch
from eval.latency.shapes import target_of


@dataclasses.dataclass(frozen=True)
class CompileConfig:
    """What to compile, and for which device."""

    device: Literal["h100", "h200", "b200", "v5e", "v5p", "v6e"] = "h200"
    """GPUs need the extra aot, TPUs the extra tpu (in an environment without CUDA's)."""
    shape: tuple[str, ...] = ("qwen3-8b",)
    """Shapes of models: demo, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, -30b-a3b,
    -235b-a22b, llama-3-8b, llama-3-70b, llama-3.1-70b, tiny."""
    method: tuple[Method, ...] = ("plain", "dart")
    """Ways to draft."""
    program: tuple[Program, ...] = ("step",)
    """prefill, step (verify and draft), search (of the trees), loop (a whole generation in one
    program), or serve (a step of the serving engine, with caches in pages)."""
    search: SearchWay = "auto"
    """Where trees are searched: native, in C++ on the host, called by XLA, for GPUs; callback, the
    same through Python; or device. auto is the platform's best."""
    ngrams: int = 1_700_000
    """N-grams in the table of a search on the device; by default about the demo model's."""
    batch_size: tuple[int, ...] = (1,)
    """Sequences decoded together."""
    tree_nodes: tuple[int, ...] = (60,)
    """Nodes of the draft tree, beside the root."""
    context: tuple[int, ...] = (2048,)
    """Cached tokens of each sequence."""
    prompt: int = 1024
    """Tokens of the prefill. More than 512 are read in chunks, of which the last is compiled."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """dtype of weights and caches."""
    weights: tuple[Literal["stored", "int8"], ...] = ("stored",)
    """How the weights of linear layers and experts are stored: with that dtype, or in 8 bits."""
    temperature: float = 0.0
    """0 decodes greedily."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens that together have this probability."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one."""
    penalties: bool = False
    """Steps and loops also have the bias of logits and the penalties (repetition, presence,
    frequency) for which a server's requests may ask."""
    layers: int | None = None
    """Compile only so many layers of the target, to be quicker; at least 7."""
    mesh: str = "data=1,model=1"
    """Devices that decode together, such as data=1,model=8; programs: all but search."""
    tau: float = 3.6
    """Tokens per tree, bonus token included, that predictions for several devices assume."""
    efficiency: float = 1.0
    """Share of the data sheet's bandwidth and rate that they assume."""
    details: int = 8
    """List the kernels that move the most bytes besides weights and caches; 0 lists none."""
    check: bool = False
    """Exit with status 1 if a program copies a cache or does not update it in place, sorts the
    whole vocabulary, exchanges data with the host in a loop that needs no search on the host, or
    exchanges more among devices than two sums a layer, the largest logits, the drafter's sums and
    its likeliest tokens, or a few numbers of each row if tokens are drawn."""
    max_kernels_a_layer: float | None = None
    """Also exit with status 1 if a layer of the target has more kernels."""
    max_ratio: float | None = None
    """Also exit with status 1 if a program moves more than this many times the bytes needed."""
    json: Path | None = None
    """Write all figures to this file."""
    markdown: Path | None = None
    """Write the tables to this file."""

    def __post_init__(self) -> None:
        for name in self.shape:
            target_of(name)
        for name in ("batch_size", "tree_nodes", "context", "prompt"):
            value = getattr(self, name)
            if min(value if isinstance(value, tuple) else (value,), default=0) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if self.layers is not None and self.layers < 7:
            raise UserError("--layers must be at least 7: a drafter reads three different ones")
        if self.search == "native" and ACCELERATORS[self.device].platform != "cuda":
            raise UserError("--search native needs a GPU; choose callback or device")
        kept_all = (self.top_k, self.top_p, self.min_p) == (0, 1, 0)
        if self.sampling.temperature == 0 and not kept_all:
            raise UserError("--top-k, --top-p and --min-p need a --temperature above 0")
        if self.ngrams < 1:
            raise UserError("--ngrams must be at least 1")
        if not self.tau >= 1:
            raise UserError("--tau must be at least 1")
        if not 0 < self.efficiency <= 1:
            raise UserError("--efficiency must be above 0 and at most 1")
        self._check_mesh()
        if self.details < 0:
            raise UserError("--details must be 0 or more")
        for name in ("max_kernels_a_layer", "max_ratio"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--{name.replace('_', '-')} must be above 0")
            if value is not None and not self.check:
                raise UserError(f"--{name.replace('_', '-')} needs --check")

    def _check_mesh(self) -> None:
        """Raises UserError if devices cannot share the models and the work."""
        mesh = self.mesh_shape
        if mesh.data * mesh.model == 1:
            return
        ACCELERATORS[self.device].topology(mesh.data * mesh.model)
        if "search" in self.program:
            raise UserError("--program search runs on one device; leave --mesh out")
        if "serve" in self.program and mesh.data > 1:
            raise UserError("--program serve runs on one group of devices; choose data=1")
        for name in self.shape:
            check_divides(target_of(name), AbstractMesh(mesh, (DATA, MODEL)))
        for batch in self.batch_size:
            check_batch(batch, mesh.data)

    @property
    def mesh_shape(self) -> MeshShape:
        """Numbers of devices."""
        return MeshShape.parse(self.mesh)

    @property
    def setting(self) -> Setting:
        """What predictions assume."""
        mesh, accelerator = self.mesh_shape, ACCELERATORS[self.device]
        return Setting(accelerator, mesh.data * mesh.model, mesh.model, self.tau, self.efficiency)

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn; raises UserError if a value is out of range."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def way(self) -> SearchWay:
        """Where trees are searched."""
        return "device" if self.search == "auto" else self.search

    def cases(self) -> list[Case]:
        """All settings; plain decoding has no tree, so it is in there once."""
        settings = itertools.product(
            self.shape, self.weights, self.batch_size, self.context, self.method, self.tree_nodes
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
                self.dtype,
                self.sampling,
                layers=self.layers,
                execution=dataclasses.replace(execution, rounded=weights == "int8"),
                search=self.way,
                ngrams=self.ngrams,
                penalties=self.penalties,
            )
            for shape, weights, batch, context, method, nodes in settings
        ]
        return list(dict.fromkeys(cases))

    def programs(self) -> list[tuple[Case, Program]]:
        """What to compile; only methods that search trees have a search."""
        every = itertools.product(self.cases(), self.program)
        return [(case, name) for case, name in every if name != "search" or case.config.searches]


def run(config: CompileConfig, console: Console) -> list[Summary]:
    """Compiles, prints and writes the reports.

    Raises:
      UserError: a report cannot be written, or the device's compiler is not installed.
    """
    check_outputs(config.json, config.markdown)
    shape, setting = config.mesh_shape, config.setting
    devices = compile_only(config.device, setting.devices)
    mesh = shape.make(devices) if setting.devices > 1 else None
    allow_callbacks()
    accelerator = ACCELERATORS[config.device]
    summaries = []
    for alone, name in config.programs():
        case = alone.on(mesh)
        title = f"{case.shape}, {case.method}, {name}"
        with stage(f"compiling {title}", console), tempfile.TemporaryDirectory() as dump:
            began = time.perf_counter()
            with described(config.device):
                lowered = case.lower(name, devices[0])
            compiled = compile_lowered(lowered, accelerator, Path(dump))
            seconds = time.perf_counter() - began
            summary = summarise(case, name, compiled, seconds, Path(dump))
        summaries.append(summary)
        jax.clear_caches()
        if config.details:
            console.print(details(summary, config.details).table())
    tables = [table(summaries, accelerator) for table in (traffic, launches, memory, care)]
    if mesh is not None:
        more = (room, exchanges, *([prediction] if "step" in config.program else []))
        tables += [table(summaries, setting) for table in more]
    for table in tables:
        console.print(table.table())
    for summary in summaries:
        if line := outside_graphs(summary):
            console.print(line, highlight=False)
    if config.json:
        content = {
            "environment": environment(),
            "revision": revision(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": dataclasses.asdict(accelerator),
            "programs": [
                summary.as_json() | ({"predicted": summary.predicted(setting)} if mesh else {})
                for summary in summaries
            ],
        }
        write_json(config.json, content)
    if config.markdown:
        write_text(config.markdown, "\n".join(table.markdown() for table in tables))
    return summaries


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a check failed; 2: bad input, reported in one line."""
    with program():
        config = parse(CompileConfig, args, __doc__)
        jax.config.update("jax_platforms", "cpu")
        summaries = run(config, Console())
        if config.check:
            limits = Limits(config.max_kernels_a_layer, config.max_ratio)
            found = [line for summary in summaries for line in violations(summary, limits)]
            for line in found:
                print(f"failed: {line}", file=sys.stderr)
            if found:
                sys.exit(1)
            print(f"{len(summaries)} programs checked")
