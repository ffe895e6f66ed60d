"""Accelerators that can be compiled for without having one: XLA is told what they are like.

GPUs need jaxlib's CUDA plugin and NVIDIA's assembler, TPUs need libtpu; neither needs a driver. The
process itself runs on the CPU.
"""

from __future__ import annotations

import dataclasses
import math
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution, best_dtype_of_gpu

# XLA's description of a GPU, a text proto.
_GPU = """gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor}{features} }}
  core_count: {cores}
  clock_rate_ghz: {clock}
  l2_cache_size: {cache}
  memory_bandwidth: {bandwidth}
  device_memory_size: {memory}
  name: "{title}"
  fpus_per_core: {units}
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: {threads}
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {of_block}
  shared_memory_per_core: {shared}
  runtime_version: "13.0.0"
  driver_version: "13.0.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
device_description_str: "{title}"
"""
# Layouts of GPUs in a machine, all linked by NVLink, and of the chips in a TPU's slices.
_MACHINE = tuple((1, 1, count) for count in range(1, 9))
_SLICES = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))


@dataclasses.dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU, by its data sheet and its compute capability's limits.

    Attributes:
      capability: compute capability.
      cores: multiprocessors.
      clock: in GHz, boosted.
      cache: bytes of L2 cache.
      bandwidth: bytes of memory read in a second.
      memory: bytes.
    """

    capability: float
    cores: int
    clock: float
    cache: int
    bandwidth: int
    memory: int

    def described(self, title: str) -> str:
        """Returns XLA's description."""
        limits = _LIMITS[self.capability]
        major, minor = divmod(round(10 * self.capability), 10)
        # What these generations alone have is not in every later one.
        features = " feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
        return _GPU.format(
            title=title, major=major, minor=minor, features=features, of_block=limits.of_block,
            shared=limits.of_block + 1024 * (self.capability >= 8), units=limits.units,
            threads=limits.threads, **dataclasses.asdict(self),
        )  # fmt: skip


class _Limits(NamedTuple):
    """Limits of a compute capability: bytes of shared memory of a block, threads that a
    multiprocessor holds, and its float32 units."""

    of_block: int
    threads: int
    units: int


_LIMITS = {
    7.5: _Limits(64 * 2**10, 1024, 64),
    8.0: _Limits(163 * 2**10, 2048, 64),
    8.6: _Limits(99 * 2**10, 1536, 128),
    8.9: _Limits(99 * 2**10, 1536, 128),
    9.0: _Limits(227 * 2**10, 2048, 128),
    10.0: _Limits(227 * 2**10, 2048, 128),
    12.0: _Limits(99 * 2**10, 1536, 128),
}


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A kind of device.

    Attributes:
      title: the vendor's name.
      bandwidth: bytes of memory read in a second.
      rate: operations of products in 16 bits in a second, two per multiply-add, by its data sheet.
      gpu: what a GPU is like.
    """

    title: str
    bandwidth: int
    rate: int
    gpu: Gpu | None = None

    @property
    def dtype(self) -> Literal["bfloat16", "float16"]:
        """The dtype of weights that it multiplies best."""
        return best_dtype_of_gpu(self.gpu.capability) if self.gpu else "bfloat16"

    @property
    def execution(self) -> Execution:
        """The way models are computed on it."""
        best = Execution.of_gpu(self.gpu.capability) if self.gpu else Execution.of_tpu()
        return best.in_dtype(self.dtype)

    def topology(self, count: int) -> tuple[int, ...]:
        """The layout of the fewest devices that are at least so many, linked directly; raises
        UserError if no machine or slice has so many."""
        layouts = _MACHINE if self.gpu else _SLICES
        for layout in layouts:
            if math.prod(layout) >= count:
                return layout
        where = "one machine" if self.gpu else "the largest slice"
        raise UserError(
            f"a mesh of {count} devices is larger than {where} of {self.title}, which has "
            f"{math.prod(layouts[-1])}"
        )


def _tpu(title: str, bandwidth: int, rate: int) -> Accelerator:
    """Describes a TPU, with bandwidth in GB/s and rate in TFLOP/s."""
    return Accelerator(title, bandwidth * 10**9, rate * 10**12)


def _gpu(
    title: str,
    capability: float,
    cores: int,
    clock: float,
    cache: int,
    bandwidth: int,
    rate: int,
    memory: int,
) -> Accelerator:
    """Describes a GPU likewise, with L2 cache in MiB and memory in GB."""
    sizes = cache * 2**20, bandwidth * 10**9, memory * 10**9
    gpu = Gpu(capability, cores, clock, *sizes)
    return dataclasses.replace(_tpu(title, bandwidth, rate), gpu=gpu)


ACCELERATORS = {
    "t4": _gpu("Tesla T4", 7.5, 40, 1.59, 4, 320, 65, 16),
    "l4": _gpu("NVIDIA L4", 8.9, 58, 2.04, 48, 300, 121, 24),
    "a100": _gpu("NVIDIA A100-SXM4-40GB", 8.0, 108, 1.41, 40, 1_555, 312, 40),
    "rtx-3090": _gpu("NVIDIA GeForce RTX 3090", 8.6, 82, 1.70, 6, 936, 71, 24),
    "rtx-4090": _gpu("NVIDIA GeForce RTX 4090", 8.9, 128, 2.52, 72, 1_008, 165, 24),
    "rtx-5090": _gpu("NVIDIA GeForce RTX 5090", 12.0, 170, 2.41, 96, 1_792, 210, 32),
    "h100": _gpu("NVIDIA H100 SXM", 9.0, 132, 1.98, 50, 3_350, 989, 80),
    "h200": _gpu("NVIDIA H200 SXM", 9.0, 132, 1.98, 50, 4_800, 989, 141),
    "b200": _gpu("NVIDIA B200", 10.0, 148, 1.97, 126, 8_000, 2_250, 180),
    "v5e": _tpu("TPU v5e", 819, 197),
    "v6e": _tpu("TPU v6e", 1_640, 918),
}


def compile_only(name: str, count: int = 1) -> list[Any]:
    """Returns devices that programs can be compiled for, but not run on: the fewest that are linked
    directly and at least `count`. Raises UserError if the compiler for their platform is not
    installed, or there are not so many."""
    accelerator = ACCELERATORS[name]
    layout, extra = "x".join(map(str, accelerator.topology(count))), "aot"
    options: dict[str, Any] = {"topology": layout}
    if accelerator.gpu:
        options["target_config"] = accelerator.gpu.described(accelerator.title)
    else:
        # There is no metadata server to ask, and since no device is used, processes need not take
        # turns.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{name}-4")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        options, extra = {"topology_name": f"{name}:{layout}"}, "tpu"
    try:
        platform = "cuda" if accelerator.gpu else "tpu"
        topology = topologies.get_topology_desc(platform=platform, **options)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"cannot compile for {name}: {reason}; pip install 'dart-jax[{extra}]'"
        ) from None
    return list(topology.devices)


def described(accelerator: Accelerator) -> AbstractContextManager[Any]:
    """Tells Pallas, while a program is lowered, which GPU it writes kernels for."""
    if not accelerator.gpu:
        return nullcontext()
    device = AbstractDevice(
        device_kind=accelerator.title, num_cores=accelerator.gpu.cores, platform="gpu"
    )
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def compile_lowered(
    lowered: jax.stages.Lowered, accelerator: Accelerator, dump: Path
) -> jax.stages.Compiled:
    """Compiles a program that was lowered for a device; the compiler for GPUs writes its schedule
    into `dump`. Raises UserError if it does not fit into the device's memory."""
    options: dict[str, Any] = {}
    if accelerator.gpu:
        options = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}
        # Tiles of matrix products by XLA's model of costs, where no device can time them; without
        # sums that are split among blocks, which that model chooses nearly always and adds up in
        # another kernel.
        options["xla_gpu_experimental_force_split_k"] = 1
        if jax.__version_info__ >= (0, 11):
            options["xla_gpu_experimental_cost_model_gemm_tiling_default"] = True
    try:
        return lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(
            f"the program does not fit into the memory of a {accelerator.title}: "
            f"{str(error).splitlines()[0]}; choose a smaller shape, batch or context, more devices "
            "with --mesh, or fewer layers with --layers"
        ) from None
