"""Time every stage of a decode step, and compare it with the device's limit.

    python -m eval.latency
    python -m eval.latency --shape qwen3-8b --context 1024 --tree-nodes 16 60
    python -m eval.latency --shape llama-3.1-70b --mesh data=1,model=4

Uses random weights in real shapes, so nothing is downloaded. Without arguments it measures the
demo's shape on a CPU, and those of Qwen3 on a GPU.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from rich.console import Console
from rich.progress import Progress

from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.figures import save_figure
from dart_jax.programs.outputs import check_outputs, write_json, write_text
from dart_jax.programs.provenance import environment, revision
from dart_jax.progress import progress_bar, stage
from dart_jax.weights.checkpoint import resolve_dtype
from dart_jax.weights.user_cache import enable_compilation_cache
from eval.latency import hardware
from eval.latency.case import Case, Model, Row, needed_memory, run_case
from eval.latency.clock import Timing
from eval.latency.derived import contradiction, derive, outliers, read_tau_by_nodes
from eval.latency.devices import check_batch
from eval.latency.hardware import Hardware
from eval.latency.report import CLOCK, Result, draw, hardware_line, stage_grid, tree_grid
from eval.latency.shapes import QWEN3, configs, drafter_of, parameters, target_of


@dataclasses.dataclass(frozen=True)
class LatencyConfig:
    """What to measure."""

    shape: tuple[str, ...] = ()
    """Shapes of models: demo, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, -30b-a3b, -235b-a22b,
    llama-3-8b, llama-3-70b, llama-3.1-70b, tiny. By default demo on a CPU, otherwise the dense ones
    of Qwen3."""
    context: tuple[int, ...] = ()
    """Cached tokens, such as 128 to 32768; by default 128 and 1024 on a CPU, otherwise 2048 and
    8192."""
    tree_nodes: tuple[int, ...] = ()
    """Nodes of the trees, without the root; by default 8, 16 and 60 on a CPU, otherwise 16 and
    60."""
    batch_size: int = 1
    """Sequences decoded together."""
    repeats: int = 5
    """Measurements of every stage."""
    seconds: float = 0.1
    """Approximate time of all calls of one measurement."""
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
    tau: tuple[float, ...] = (2.5, 3.0, 3.6, 4.0)
    """Tokens per verification, bonus token included, for which to report the speed-up."""
    tau_by_nodes: Path | None = None
    """JSON file with the tau of trees of N nodes, such as {"8": 3.1, "60": 3.9}; used to find the
    best N."""
    minutes: float | None = None
    """Start no new measurement after this many minutes; by default 8 without --shape, otherwise no
    limit."""
    json: Path | None = None
    """Write all measurements to this file."""
    markdown: Path | None = None
    """Write the tables to this file."""
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
        Sampling(self.temperature, self.top_k, self.top_p)
        if len(set(self.tree_nodes)) < len(self.tree_nodes):
            raise UserError("--tree-nodes must be different numbers")
        if not 0 < self.seconds < float("inf"):
            raise UserError("--seconds must be a positive number")
        if self.mesh is not None:
            check_batch(self.batch_size, MeshShape.parse(self.mesh).data)
        if not self.tau or min(self.tau) < 1:
            raise UserError("--tau must be numbers of at least 1")
        if self.minutes is not None and not self.minutes > 0:
            raise UserError("--minutes must be a positive number")

    def filled(self) -> LatencyConfig:
        """Returns the options with the device's defaults, lower-case shapes and sorted nodes."""
        cpu = jax.default_backend() == "cpu"
        minutes = self.minutes or (None if self.shape else 8.0)
        return dataclasses.replace(
            self,
            shape=tuple(name.lower() for name in self.shape) or (("demo",) if cpu else QWEN3),
            context=self.context or ((128, 1024) if cpu else (2048, 8192)),
            tree_nodes=tuple(sorted(self.tree_nodes)) or ((8, 16, 60) if cpu else (16, 60)),
            dtype=str(resolve_dtype(self.dtype)),
            minutes=minutes,
        )

    def execution(self) -> Execution:
        """How the models are computed, and by which devices.

        Raises:
          UserError: there are too few devices, or they cannot share one of the shapes.
        """
        execution = Execution.here()
        if self.mesh is not None:
            execution = execution.on(MeshShape.parse(self.mesh).make())
        for name in self.shape:
            configs(name, execution)
        return execution


class Latency:
    """One measurement: the results of all cases, and why others were left out."""

    def __init__(
        self,
        config: LatencyConfig,
        console: Console,
        execution: Execution,
        hardware: Hardware,
        taus: dict[int, float] | None,
    ):
        self.config, self.console, self.hardware, self.taus = config, console, hardware, taus
        self.execution = execution
        self.dtype = resolve_dtype(config.dtype)
        self.results: list[Result] = []
        self.left_out: list[str] = []
        self.deadline = time.monotonic() + 60 * (config.minutes or float("inf"))

    def out_of_time(self) -> bool:
        """Whether the time limit is reached."""
        return time.monotonic() > self.deadline

    def run(self) -> None:
        """Measures every shape at the first context, then at the next."""
        config = self.config
        cases = [(name, context) for context in config.context for name in config.shape]
        with progress_bar(self.console) as progress:
            stages = 2 + 5 * len(config.tree_nodes)
            task = progress.add_task("", total=stages * len(cases))
            for at, (name, context) in enumerate(cases):
                progress.update(task, completed=at * stages)
                self._measure(name, context, _notifier(progress, task, f"{name}, {context}"))

    def _measure(self, name: str, context: int, notify: Callable[[str], None]) -> None:
        config = self.config
        reason = self._reason(name, context)
        if reason is None:
            notify("weights")
            try:
                model = Model.random(name, self.dtype, self.execution)
                timing = Timing(config.repeats, config.seconds)
                case = run_case(
                    model,
                    config.batch_size,
                    context,
                    config.tree_nodes,
                    timing,
                    notify,
                    self.out_of_time,
                    Sampling(config.temperature, config.top_k, config.top_p),
                )
                reason = contradiction(case)
                if reason is None:
                    self._report(case)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                reason = "the device ran out of memory"
            jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        if reason is not None:
            self.left_out.append(f"{name}, context {context}: left out, {reason}")
            self.console.print(self.left_out[-1], highlight=False, soft_wrap=True)

    def _reason(self, name: str, context: int) -> str | None:
        """Returns why a shape cannot be measured at a context; None if it can."""
        if self.out_of_time():
            return f"since the limit of {self.config.minutes:g} minutes is reached"
        longest = target_of(name).max_length
        if context + drafter_of(target_of(name)).num_positions + 1 > longest:
            return f"it leaves no room for a step within {longest} positions"
        nodes, batch = max(self.config.tree_nodes), self.config.batch_size
        needed = needed_memory(name, self.dtype, batch, context, nodes, self.execution)
        if needed > self.hardware.memory:
            free = self.hardware.memory / 1e9
            which = "the device" if self.execution.mesh is None else "each device"
            return f"it needs about {needed / 1e9:.1f} GB, and {which} has {free:.1f} GB"
        return None

    def _report(self, case: Case) -> None:
        for nodes in self.config.tree_nodes:
            if nodes not in case.nodes:
                self.left_out.append(
                    f"{case.shape}, context {case.context}, {nodes} nodes: left out, since the "
                    f"limit of {self.config.minutes:g} minutes is reached"
                )
        result = Result(case, derive(case, self.config.tau, self.taus))
        self.results.append(result)
        self.console.print(stage_grid(case, self.hardware).table())
        self.console.print(tree_grid(*result, self.config.tau).table())

    def outliers(self) -> list[str]:
        """Describes the outliers of all cases."""
        return [line for result in self.results for line in outliers(*result, self.hardware)]


def _notifier(progress: Progress, task: Any, name: str) -> Callable[[str], None]:
    def notify(stage: str) -> None:
        progress.update(task, description=f"{name}: {stage}", advance=1)

    return notify


def run(config: LatencyConfig, console: Console) -> Latency:
    """Measures, prints and writes the reports.

    Raises:
      UserError: a report cannot be written, or nothing could be measured.
    """
    config = config.filled()
    check_outputs(config.json, config.markdown, drawing=config.plot)
    taus = (
        read_tau_by_nodes(config.tau_by_nodes, config.tree_nodes) if config.tau_by_nodes else None
    )
    execution = config.execution()
    machine = ", ".join(f"{k} {v}" for k, v in environment().items())
    console.print(machine)
    with stage("measuring the device's limits", console):
        limits = hardware.measure(resolve_dtype(config.dtype))
    if execution.mesh is not None and jax.default_backend() == "cpu":
        limits = limits.shared_by(execution.mesh.size)
    console.print(hardware_line(limits), highlight=False, soft_wrap=True)
    latency = Latency(config, console, execution, limits, taus)
    latency.run()
    if not latency.results:
        raise UserError("nothing was measured: " + "; ".join(latency.left_out))
    console.print(CLOCK, highlight=False)
    for line in latency.outliers():
        console.print(f"outlier: {line}", highlight=False, soft_wrap=True)
    if config.json:
        write_json(config.json, _as_json(latency))
    if config.markdown:
        write_text(config.markdown, _as_markdown(latency, machine))
    if config.plot:
        save_figure(draw(latency.results, limits), config.plot)
    return latency


def _as_json(latency: Latency) -> dict[str, Any]:
    return {
        "environment": environment(),
        "revision": revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": dataclasses.asdict(latency.config),
        "clock": CLOCK,
        "hardware": latency.hardware._asdict(),
        "cases": [
            {
                **{field: getattr(case, field) for field in _FIELDS},
                "parameters": parameters(target_of(case.shape)),
                "drafter_parameters": parameters(drafter_of(target_of(case.shape))),
                "stages": [_row_as_json(row, latency.hardware) for row in case.rows],
                "trees": [tree._asdict() for tree in derived.trees],
                "best_nodes": derived.best,
                "best_speedup": derived.best_speedup,
            }
            for case, derived in latency.results
        ],
        "left_out": latency.left_out,
        "stands_out": latency.outliers(),
    }


_FIELDS = ("shape", "context", "capacity", "batch", "prefilled", "ngram")


def _row_as_json(row: Row, hardware: Hardware) -> dict[str, Any]:
    times, limit = row.times, None
    if row.cost is not None:
        limit = row.cost.limit(hardware.bandwidth, hardware.rate)
    return {
        "stage": row.stage,
        "nodes": row.nodes,
        "seconds": times.seconds,
        "quartiles": times.quartiles,
        **dataclasses.asdict(times),
        "bytes": None if row.cost is None else row.cost.bytes,
        "operations": None if row.cost is None else row.cost.operations,
        "limit": limit,
        "ratio": None if limit is None else times.seconds / limit,
    }


def _as_markdown(latency: Latency, machine: str) -> str:
    lines = [f"{datetime.date.today()}; {machine}.", "", hardware_line(latency.hardware) + ".", ""]
    for result in latency.results:
        lines.append(stage_grid(result.case, latency.hardware).markdown())
        lines.append(tree_grid(*result, latency.config.tau).markdown())
    lines += [CLOCK, ""]
    lines += [f"- Outlier: {line}." for line in latency.outliers()]
    lines += [f"- {line}." for line in latency.left_out]
    return "\n".join(lines) + "\n"


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        config = parse(LatencyConfig, args, __doc__)
        enable_compilation_cache()
        run(config, Console())
