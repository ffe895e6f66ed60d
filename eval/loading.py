"""Measure the memory and time of loading a checkpoint.

    python -m eval.loading --size 1GB --shards 4
    python -m eval.loading --target path/to/checkpoint
    python -m eval.loading --size 2GB --processes 4

Writes a random sharded checkpoint (or uses the given one) and loads it in a new process. Reports
the process's peak resident memory, minus what was resident before, relative to the size of the
largest file plus the model on the device. On CPU the model on the device is part of that memory.

With --processes, so many processes of one device each share the model. Reports the peak resident
memory of each, minus what was resident when it had imported JAX, beside its share of the model plus
the largest tensor.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from dart_jax.errors import UserError
from dart_jax.memory import parse_memory, peak_memory
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.layers import Params
from dart_jax.models.pure import abstract_params
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.programs.child import run_child
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.processes import DistributedConfig, free_address, initialize
from dart_jax.progress import stage
from dart_jax.weights.checkpoint import load_target, save_target
from dart_jax.weights.tensor_files import open_tensors


@dataclasses.dataclass(frozen=True)
class LoadingConfig:
    """What to load, and how."""

    size: str = "1GB"
    """Approximate size of the generated checkpoint."""
    shards: int = 4
    """Minimum number of its files."""
    experts: int = 0
    """Experts per layer; 0 is a dense model."""
    stored: Literal["float32", "bfloat16"] = "bfloat16"
    """dtype of the weights in the files."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """dtype of the weights on the device."""
    target: Path | None = None
    """Checkpoint to load instead of a generated one."""
    processes: int = 1
    """Processes that share the model, on this machine."""

    def __post_init__(self) -> None:
        if self.shards < 1 or self.experts < 0 or self.processes < 1:
            raise UserError("--shards and --processes must be at least 1, --experts at least 0")


@dataclasses.dataclass(frozen=True)
class Loading:
    """Memory in bytes, and time in seconds, of loading a checkpoint.

    Attributes:
      model: size of the parameters on the device.
      largest_file: size of the largest weights file.
      files: size of all weights files.
      before: peak resident memory before loading.
      peak: peak resident memory after loading.
      seconds: time from the call until all parameters are on the device.
      cpu_seconds: CPU time of this process in that time.
    """

    model: int
    largest_file: int
    files: int
    before: int
    peak: int
    seconds: float
    cpu_seconds: float

    @property
    def ratio(self) -> float:
        """Memory used by loading, over the largest file plus the model."""
        return (self.peak - self.before) / (self.largest_file + self.model)

    def __str__(self) -> str:
        gb = {k: f"{v / 1e9:.2f} GB" for k, v in dataclasses.asdict(self).items()}
        return (
            f"model {gb['model']}, largest file {gb['largest_file']}; "
            f"resident before {gb['before']}, peak {gb['peak']}\n"
            f"used: {(self.peak - self.before) / 1e9:.2f} GB, "
            f"{self.ratio:.2f} of largest file + model\n"
            f"time: {self.seconds:.2f} s, {self.files / self.seconds / 1e9:.2f} GB/s; "
            f"CPU time {self.cpu_seconds:.2f} s"
        )


@dataclasses.dataclass(frozen=True)
class Share:
    """Memory in bytes, and time in seconds, of loading one process's share of a checkpoint.

    Attributes:
      share: size of the parameters on its devices.
      largest_tensor: size of the largest stored tensor.
      before: peak resident memory when JAX was imported.
      peak: peak resident memory after loading.
      seconds: time from the call until all parameters are on the devices.
    """

    share: int
    largest_tensor: int
    before: int
    peak: int
    seconds: float

    @property
    def beyond(self) -> int:
        """Memory used beyond the share and the largest tensor, that of connecting included."""
        return self.peak - self.before - self.share - self.largest_tensor


def table(shares: Sequence[Share]) -> str:
    """A row for each process."""
    head = ("process", "share", "largest tensor", "before", "peak", "beyond", "seconds")
    rows = [
        (
            str(number),
            *(
                f"{size / 1e6:,.0f} MB"
                for size in (x.share, x.largest_tensor, x.before, x.peak, x.beyond)
            ),
            f"{x.seconds:.1f}",
        )
        for number, x in enumerate(shares)
    ]
    lines = [head, tuple("---:" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shape(size: int, experts: int, bytes_per_weight: int) -> TargetConfig:
    """Returns the shape of a model of about `size` bytes, by its number of layers."""
    width = 1024
    config = TargetConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=7,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
    )
    if experts:
        moe = MoEConfig(experts, min(experts, 8), width // 2, norm_topk_prob=True)
        config = dataclasses.replace(config, model_type="qwen3_moe", moe=moe)

    def weights(layers: int) -> int:
        return _count(dataclasses.replace(config, num_hidden_layers=layers))

    per_layer = weights(8) - weights(7)
    layers = 7 + max(0, round((size / bytes_per_weight - weights(7)) / per_layer))
    return dataclasses.replace(config, num_hidden_layers=layers)


def measure(directory: Path, dtype: str) -> Loading:
    """Loads a checkpoint in this process, which should be a new one."""
    jnp.zeros(1).block_until_ready()  # starts JAX
    before, start, cpu_start = peak_memory(), time.perf_counter(), time.process_time()
    _, params = load_target(directory, dtype)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    files = [path.stat().st_size for path in directory.glob("*.safetensors")]
    files = files or [path.stat().st_size for path in directory.glob("*.bin")]
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    return Loading(model, max(files), sum(files), before, peak_memory(), seconds, cpu_seconds)


def in_new_process(directory: Path, dtype: str) -> Loading:
    """Runs `measure` in a new process; raises UserError if that fails."""
    return Loading(**json.loads(run_child("loading", ["--child", str(directory), dtype])))


def measure_share(directory: Path, dtype: str, processes: DistributedConfig) -> Share:
    """Loads this process's share of a checkpoint; the process should be a new one."""
    before = peak_memory()
    initialize(processes)
    mesh = MeshShape(model=jax.device_count()).make()
    start = time.perf_counter()
    _, params = load_target(directory, dtype, mesh=mesh)
    seconds = time.perf_counter() - start
    leaves = jax.tree.leaves(params)
    share = sum(part.data.nbytes for leaf in leaves for part in leaf.addressable_shards)
    tensors = open_tensors(directory).tensors.values()
    largest = max(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors)
    return Share(share, largest, before, peak_memory(), seconds)


def in_processes(directory: Path, dtype: str, count: int) -> list[Share]:
    """Runs `measure_share` in so many new processes; raises UserError if that fails."""
    coordinator = free_address()
    # One device each, whatever this process has.
    environ = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}

    def run(number: int) -> Share:
        words = ["--child", str(directory), dtype, coordinator, str(count), str(number)]
        printed = run_child("loading", words, environ)
        return Share(**json.loads(printed.splitlines()[-1]))  # Gloo prints lines before

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@contextlib.contextmanager
def _checkpoint(config: LoadingConfig) -> Iterator[Path]:
    """Yields the directory to load: the given one, or a generated temporary one."""
    if config.target is not None:
        yield config.target
        return
    size, itemsize = parse_memory(config.size), jnp.dtype(config.stored).itemsize
    target = shape(size, config.experts, itemsize)
    with tempfile.TemporaryDirectory(prefix="dart_jax-") as name:
        directory = Path(name)
        with stage("writing a checkpoint", short=True):
            params = _random_params(target, config.stored)
            size = _count(target) * itemsize
            save_target(directory, target, params, max_shard_size=-(-size // config.shards))
        yield directory


def _random_params(config: TargetConfig, dtype: str) -> Params:
    """Returns parameters that repeat a few random numbers: their values do not matter."""
    key = jax.random.key(0)
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(jax.random.normal(key, leaf.shape[-1:], dtype), leaf.shape),
        abstract_params(config),
    )


def _count(config: TargetConfig) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    args = sys.argv[1:] if args is None else args
    with program():
        if args[:1] == ["--child"] and args[3:]:
            processes = DistributedConfig(False, args[3], int(args[4]), int(args[5]))
            share = measure_share(Path(args[1]), args[2], processes)
            print(json.dumps(dataclasses.asdict(share)))
            return
        if args[:1] == ["--child"]:
            print(json.dumps(dataclasses.asdict(measure(Path(args[1]), args[2]))))
            return
        config = parse(LoadingConfig, args, __doc__)
        with _checkpoint(config) as directory:
            with stage("loading", short=True):
                if config.processes > 1:
                    report = table(in_processes(directory, config.dtype, config.processes))
                else:
                    report = in_new_process(directory, config.dtype)
            print(report)


if __name__ == "__main__":
    main()
