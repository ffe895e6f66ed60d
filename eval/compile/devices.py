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
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution

# XLA's description of a GPU, a text proto. NVIDIA's limits per block and per multiprocessor are the
# same since Hopper.
_GPU = """gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: 0 feature_extension: ACCELERATED_FEATURES }}
  core_count: {cores}
  clock_rate_ghz: {clock}
  l2_cache_size: {cache}
  memory_bandwidth: {bandwidth}
  device_memory_size: {memory}
  name: "{title}"
  fpus_per_core: 128
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
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
class Accelerator:
    """A kind of device: the vendor's name, and XLA's description if it is a GPU."""

    title: str
    gpu: str = ""

    @property
    def execution(self) -> Execution:
        """The way models are computed on it."""
        return Execution.of_gpu(9) if self.gpu else Execution.of_tpu()

    def topology(self, count: int) -> tuple[int, ...]:
        """Returns the layout of the fewest devices, at least `count`, that are linked directly.

        Raises:
          UserError: no machine or slice has that many.
        """
        layouts = _MACHINE if self.gpu else _SLICES
        for layout in layouts:
            if math.prod(layout) >= count:
                return layout
        where = "one machine" if self.gpu else "the largest slice"
        raise UserError(
            f"a mesh of {count} devices is larger than {where} of {self.title}, which has "
            f"{math.prod(layouts[-1])}"
        )


def _gpu(
    title: str, major: int, cores: int, clock: float, cache: int, bandwidth: int, memory: int
) -> Accelerator:
    """Describes an NVIDIA GPU: major compute capability, multiprocessors, GHz, bytes of L2 cache,
    bytes per second and bytes of memory."""
    figures = {"cores": cores, "clock": clock, "cache": cache, "bandwidth": bandwidth}
    return Accelerator(title, _GPU.format(title=title, major=major, memory=memory, **figures))


ACCELERATORS = {
    "h200": _gpu("NVIDIA H200 SXM", 9, 132, 1.98, 50 * 2**20, 4_800 * 10**9, 141 * 10**9),
    "b200": _gpu("NVIDIA B200", 10, 148, 1.97, 126 * 2**20, 8_000 * 10**9, 180 * 10**9),
    "v5e": Accelerator("TPU v5e"),
    "v6e": Accelerator("TPU v6e"),
}


def compile_only(name: str, count: int = 1) -> list[Any]:
    """Returns devices that programs can be compiled for, but not run on: the fewest that are linked
    directly and at least `count`.

    Raises:
      UserError: the compiler for their platform is not installed, or there are not enough devices.
    """
    accelerator = ACCELERATORS[name]
    layout, extra = "x".join(map(str, accelerator.topology(count))), "aot"
    options: dict[str, Any] = {"target_config": accelerator.gpu, "topology": layout}
    if not accelerator.gpu:
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
    device = AbstractDevice(device_kind=accelerator.title, num_cores=None, platform="gpu")
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
