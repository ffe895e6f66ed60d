"""Time every stage of a decode step, and compare it with the device's limit.

    python -m eval.latency
    python -m eval.latency --shape qwen3-8b --context 1024 --tree-nodes 16 60
    python -m eval.latency --shape llama-3.1-70b --mesh data=1,model=4

Uses random weights in real shapes, so nothing is downloaded. Without arguments it measures the
demo's shape on a CPU, otherwise that of Qwen3-8B.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from rich.console import Console

from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.figures import save_figure
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import environment, revision
from dart_jax.progress import stage
from dart_jax.weights.checkpoint import resolve_dtype
from dart_jax.weights.user_cache import enable_compilation_cache
from eval.latency import hardware
from eval.latency.abstract_arrays import held_bytes, placed_weights
from eval.latency.case import STAGES, Case, run_case
from eval.latency.cost import cached_row
from eval.latency.hardware import Hardware
from eval.latency.model import Model, config_of
from eval.latency.report import draw, stage_grid
from eval.latency.shapes import check_batch, target_of


@dataclasses.dataclass(frozen=True)
class LatencyConfig:
    """What to measure."""

    shape: tuple[str, ...] = ()
    """Shapes of models: demo, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, -30b-a3b, -235b-a22b,
    llama-3-8b, llama-3-70b, llama-3.1-70b, tiny. By default demo on a CPU, otherwise qwen3-8b."""
    context: tuple[int, ...] = ()
    """Cached tokens; by default 128 and 1024 on a CPU, otherwise 2048 and 8192."""
    tree_nodes: tuple[int, ...] = ()
    """Nodes of the trees, without the root; by default 8, 16 and 60 on a CPU, otherwise 16 and
    60."""
    batch_size: tuple[int, ...] = (1,)
    """Sequences decoded together."""
    repeats: int = 5
    """Measurements of every stage."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of weights and activations; auto is float32 on CPU, otherwise bfloat16."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy. With random weights a nucleus holds
    thousands of tokens."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0 is off."""
    top_p: float = 1.0
    """Draw from the most likely tokens whose probability reaches p; 1 is off."""
    mesh: str | None = None
    """Devices that decode together, such as model=4 or data=2,model=4: groups of devices that share
    the models' weights (model), each with some of a batch's rows (data). Bytes, operations and
    limits are then those of one device. By default one device."""
    json: Path | None = None
    """Write all measurements to this file."""
    plot: Path | None = None
    """Draw the figure into this file."""

    def __post_init__(self) -> None:
        for name in self.shape:
            target_of(name)
        for name in ("context", "tree_nodes", "batch_size", "repeats"):
            value = getattr(self, name)
            if min(value if isinstance(value, tuple) else (value,), default=1) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if not self.temperature and (self.top_k or self.top_p != 1):
            raise UserError("--top-k and --top-p need a --temperature above 0")
        _ = self.sampling
        if len(set(self.tree_nodes)) < len(self.tree_nodes):
            raise UserError("--tree-nodes must be different numbers")
        for batch in self.batch_size if self.mesh is not None else ():
            check_batch(batch, MeshShape.parse(self.mesh).data)

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn; raises UserError if a value is out of range."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    def filled(self) -> LatencyConfig:
        """Returns the options with the device's defaults and lower-case shapes."""
        cpu = jax.default_backend() == "cpu"
        return dataclasses.replace(
            self,
            shape=tuple(name.lower() for name in self.shape) or ("demo" if cpu else "qwen3-8b",),
            context=self.context or ((128, 1024) if cpu else (2048, 8192)),
            tree_nodes=self.tree_nodes or ((8, 16, 60) if cpu else (16, 60)),
            dtype=str(resolve_dtype(self.dtype)),
        )

    def execution(self) -> Execution:
        """How the models are computed, and by which devices; raises UserError if there are too
        few."""
        here = Execution.here()
        return here if self.mesh is None else here.on(MeshShape.parse(self.mesh).make())


def check_room(config: LatencyConfig, execution: Execution, memory: int) -> None:
    """Checks that weights and caches of all cases fit into a device's memory.

    Raises:
      UserError: they do not, or a context leaves no room for a step.
    """
    batch, context = max(config.batch_size), max(config.context)
    for name in config.shape:
        decode = config_of(name, execution, max(config.tree_nodes))
        longest = decode.target.max_length - decode.max_depth - 1
        if context > longest:
            raise UserError(f"--context {context} is too long for {name}: at most {longest}")
        rows = batch // execution.groups * decode.capacity(context)
        needed = held_bytes(placed_weights(decode, config.dtype))
        needed += rows * cached_row(decode, config.dtype)
        if needed > memory:
            raise UserError(
                f"{name} with batch {batch} and context {context} needs {needed / 1e9:.1f} GB, and "
                f"a device has {memory / 1e9:.1f} GB; choose a smaller --shape or more devices"
            )


def run(config: LatencyConfig, console: Console) -> list[Case]:
    """Measures, prints and writes the reports.

    Raises:
      UserError: a report cannot be written, or a case does not fit on the device.
    """
    config = config.filled()
    check_outputs(config.json, drawing=config.plot)
    execution, dtype = config.execution(), resolve_dtype(config.dtype)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    with stage("measuring the device's limits", console):
        limits = hardware.measure(dtype)
    if execution.mesh is not None and jax.default_backend() == "cpu":
        limits = limits.shared_by(execution.mesh.size)
    check_room(config, execution, limits.memory)
    of_one = "" if execution.mesh is None else f"; mesh {config.mesh}: limits of one device"
    console.print(
        f"copy: {limits.bandwidth / 1e9:,.1f} GB/s read and written; {config.dtype} product: "
        f"{limits.rate / 1e12:,.3g} Top/s{of_one}",
        highlight=False,
    )
    cases = []
    for name in config.shape:
        with stage(f"{name}: weights", console):
            model = Model.random(name, dtype, execution)
        for context in config.context:
            for batch in config.batch_size:
                with stage(f"{name}, batch {batch}, context {context}", console):
                    trees, drawn = config.tree_nodes, config.sampling
                    case = run_case(name, model, batch, context, trees, config.repeats, drawn)
                cases.append(case)
                console.print(stage_grid(case, limits).table())
                jax.clear_caches()  # compiled programs use memory mappings: their number is limited
        del model
    if not any(row.stage in STAGES for case in cases for row in case.rows):
        console.print("the profiler records no operations on this device: stages are left out")
    if config.json:
        write_json(config.json, _as_json(config, limits, cases))
    if config.plot:
        save_figure(draw(cases, limits), config.plot)
    return cases


def _as_json(config: LatencyConfig, limits: Hardware, cases: Sequence[Case]) -> dict[str, Any]:
    return {
        "environment": environment(),
        "revision": revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": dataclasses.asdict(config),
        "hardware": limits._asdict(),
        "cases": [
            {
                "shape": case.shape,
                "batch": case.batch,
                "context": case.context,
                "stages": [
                    {
                        "stage": row.stage,
                        "nodes": row.nodes,
                        "seconds": row.times.values,
                        "bytes": row.cost and row.cost.bytes,
                        "operations": row.cost and row.cost.operations,
                        "limit": row.cost and row.cost.limit(limits.bandwidth, limits.rate),
                    }
                    for row in case.rows
                ],
            }
            for case in cases
        ],
    }


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        config = parse(LatencyConfig, args, __doc__)
        enable_compilation_cache()
        run(config, Console())
