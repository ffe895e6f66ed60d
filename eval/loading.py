"""Measure the memory and time of loading a checkpoint.

    python -m eval.loading --size 1GB
    python -m eval.loading --target path/to/checkpoint
    python -m eval.loading --size 2GB --processes 4

Writes a random checkpoint in several files (or uses the given one) and loads it in a new process,
or in several that share it, of one device each. Reports the peak resident memory of each process
beyond what was resident when JAX had been imported, the process's share of the model and the
largest tensor. On a CPU the share is part of that memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from rich.console import Console

from dart_jax.memory import parse_memory, peak_memory
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.pure import abstract_params
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.programs.child import Child
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.processes import DistributedConfig, free_address, initialize
from dart_jax.programs.provenance import write_report
from dart_jax.programs.tables import table
from dart_jax.weights.checkpoint import load_target, save_target
from dart_jax.weights.tensor_files import open_tensors
from eval.latency.shapes import weight_bytes

_FILES = 4  # of a generated checkpoint, about


@dataclasses.dataclass(frozen=True)
class LoadingConfig:
    """The checkpoint to load, and the processes that load it."""

    size: str = "1GB"
    """Approximate size of the generated checkpoint, in bfloat16."""
    experts: int = 0
    """Experts per layer; 0 is a dense model."""
    target: Path | None = None
    """Checkpoint to load instead of a generated one."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """dtype of the weights on the device."""
    processes: int = 1
    """Processes that share the model, on this machine."""
    json: Path | None = None
    """Write the measurements to this file."""

    def __post_init__(self) -> None:
        check_least(self, processes=1, experts=0)


class Loading(NamedTuple):
    """Memory in bytes, and time in seconds, of loading one process's share of a checkpoint.

    Attributes:
      share: size of the parameters on its device.
      tensor: size of the largest stored tensor.
      before: peak resident memory when JAX had been imported.
      peak: peak resident memory after loading.
      seconds: time from the call until all parameters are on the devices.
    """

    share: int
    tensor: int
    before: int
    peak: int
    seconds: float


def load(directory: Path, dtype: str, processes: DistributedConfig) -> Loading:
    """Loads this process's share of a checkpoint; the process should be a new one."""
    before = peak_memory()
    initialize(processes)
    mesh = MeshShape(model=jax.device_count()).make() if processes.several else None
    start = time.perf_counter()
    _, params = load_target(directory, dtype, mesh=mesh)
    seconds = time.perf_counter() - start
    parts = [part for leaf in jax.tree.leaves(params) for part in leaf.addressable_shards]
    tensors = open_tensors(directory).tensors.values()
    largest = max(math.prod(each.shape) * each.dtype.itemsize for each in tensors)
    share = sum(part.data.nbytes for part in parts)
    return Loading(share, largest, before, peak_memory(), seconds)


def in_processes(directory: Path, dtype: str, count: int) -> list[Loading]:
    """Runs `load` in so many new processes at the same time."""
    address = free_address()
    configs = [DistributedConfig(False, address, count, n) for n in range(count)]
    if count == 1:
        configs = [DistributedConfig()]
    with (
        # One device each, whatever this process has.
        mock.patch.dict(os.environ, JAX_NUM_CPU_DEVICES="1"),
        tempfile.TemporaryDirectory(prefix="dart_jax-") as logs,
        ThreadPoolExecutor(count) as pool,
        contextlib.ExitStack() as stack,
    ):
        children = [stack.enter_context(Child(Path(logs, str(n)))) for n in range(count)]
        calls = (
            pool.submit(child.call, load, directory, dtype, config)
            for child, config in zip(children, configs, strict=True)
        )
        return [call.result() for call in list(calls)]


def write_checkpoint(directory: Path, size: int, experts: int) -> None:
    """Writes a random model of about `size` bytes, of at least seven layers."""
    config = TargetConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=7,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
    )
    if experts:
        moe = MoEConfig(experts, min(experts, 8), 512, norm_topk_prob=True)
        config = dataclasses.replace(config, model_type="qwen3_moe", moe=moe)
    seven, eight = (
        weight_bytes(dataclasses.replace(config, num_hidden_layers=n), jnp.bfloat16) for n in (7, 8)
    )
    layers = 7 + max(0, round((size - seven) / (eight - seven)))
    config = dataclasses.replace(config, num_hidden_layers=layers)
    key = jax.random.key(0)
    params = jax.tree.map(  # a few random numbers again and again: their values do not matter
        lambda x: jnp.broadcast_to(jax.random.normal(key, x.shape[-1:], jnp.bfloat16), x.shape),
        abstract_params(config),
    )
    save_target(directory, config, params, max_shard_size=-(-size // _FILES))


def run(config: LoadingConfig, console: Console) -> list[Loading]:
    """Measures, prints and writes the report; returns a measurement for each process."""
    check_outputs(config.json)
    with tempfile.TemporaryDirectory(prefix="dart_jax-") as name:
        directory = config.target or Path(name)
        if config.target is None:
            write_checkpoint(directory, parse_memory(config.size), config.experts)
        measurements = in_processes(directory, config.dtype, config.processes)
    rows = []
    for number, each in enumerate(measurements):
        beyond = each.peak - each.before - each.share - each.tensor
        sizes = (each.share, each.tensor, each.before, each.peak, beyond)
        rows.append([str(number), *(f"{x / 1e6:,.0f}" for x in sizes), f"{each.seconds:.1f}"])
    columns = ("process", "share", "largest tensor", "before", "peak", "beyond", "seconds")
    caption = (
        "share: of the model; before: when JAX had been imported; beyond: the peak less the share, "
        "the largest tensor and before"
    )
    printed = table("Memory in MB (10^6 bytes)", columns, rows, caption)
    console.print(printed)
    write_report(
        config, "Loading a checkpoint", [printed], processes=[x._asdict() for x in measurements]
    )
    return measurements


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(LoadingConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
