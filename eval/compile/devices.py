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

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A device's kind.

    Attributes:
      title: the name that the vendor gives it.
      memory: its bytes.
      bandwidth: of GPUs, bytes per second of the memory, which XLA's model of costs asks for.
      slices: for TPUs, the layouts of chips that libtpu describes, from the smallest.
      description: for GPUs, what differs from `_GPU`.
    """

    title: str
    memory: int
    bandwidth: float = 0.0
    slices: tuple[tuple[int, ...], ...] = ()
    description: tuple[tuple[str, Any], ...] = ()

    @property
    def execution(self) -> Execution:
        """How models are computed on it."""
        return Execution.of_tpu() if self.slices else Execution.of_gpu(9)

    @property
    def platform(self) -> str:
        """JAX's name of the platform: cuda or tpu."""
        return "tpu" if self.slices else "cuda"

    def topology(self, count: int) -> tuple[int, ...]:
        """The layout of the fewest devices that are at least so many; they are linked directly.

        Raises:
          UserError: no machine or slice has so many.
        """
        layouts = self.slices or tuple((1, 1, n) for n in range(1, _GPUS + 1))
        for layout in layouts:
            if math.prod(layout) >= count:
                return layout
        most = math.prod(layouts[-1])
        where = "the largest slice" if self.slices else "one machine"
        raise UserError(
            f"a mesh of {count} devices is larger than {where} of {self.title}, which has {most}"
        )


# NVIDIA's limits per block and per multiprocessor, the same since Hopper.
_GPU = {
    "fpus_per_core": 128,
    "threads_per_warp": 32,
    "threads_per_block_limit": 1024,
    "threads_per_core_limit": 2048,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "shared_memory_per_block": 48 * 1024,
    "shared_memory_per_block_optin": 227 * 1024,
    "shared_memory_per_core": 228 * 1024,
    "runtime_version": '"13.0.0"',
    "driver_version": '"13.0.0"',
    "dnn_version": '"9.10.0"',
}


def _gpu(major: int, cores: int, clock: float, cache: int) -> tuple[tuple[str, Any], ...]:
    capability = f"{{ major: {major} minor: 0 feature_extension: ACCELERATED_FEATURES }}"
    return (
        ("cuda_compute_capability", capability),
        ("core_count", cores),
        ("clock_rate_ghz", clock),
        ("l2_cache_size", cache * 2**20),
    )


_HOPPER = _gpu(9, 132, 1.98, 50)
_GPUS = 8  # of a machine, all linked by NVLink
_PLANE = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
ACCELERATORS = {
    "h200": Accelerator("NVIDIA H200 SXM", 141 * 10**9, 4.8e12, description=_HOPPER),
    "b200": Accelerator("NVIDIA B200", 180 * 10**9, 8e12, description=_gpu(10, 148, 1.97, 126)),
    "v5e": Accelerator("TPU v5e", 16 * 2**30, slices=_PLANE),
    "v6e": Accelerator("TPU v6e", 32 * 2**30, slices=_PLANE),
}


def compile_only(name: str, count: int = 1) -> list[Any]:
    """Returns devices that programs can be compiled for, but not run on: the fewest that are linked
    directly and at least `count`.

    Raises:
      UserError: the compiler for their platform is not installed, or there are no so many.
    """
    accelerator = ACCELERATORS[name]
    from jax.experimental import topologies

    layout = "x".join(map(str, accelerator.topology(count)))
    options: dict[str, Any]
    if accelerator.platform == "cuda":
        options = {"target_config": _target_config(accelerator), "topology": layout}
    else:
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{name}-4")
        # No device is used, so processes need not take turns.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        options = {"topology_name": f"{name}:{layout}"}
    try:
        topology = topologies.get_topology_desc(platform=accelerator.platform, **options)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        extra = "aot" if accelerator.platform == "cuda" else "tpu"
        reason = str(error).splitlines()[0]
        raise UserError(
            f"cannot compile for {name}: {reason}; pip install 'dart-jax[{extra}]'"
        ) from None
    return list(topology.devices)


def described(name: str) -> AbstractContextManager[Any]:
    """Tells Pallas, while a program is lowered, which GPU it writes kernels for."""
    accelerator = ACCELERATORS[name]
    if accelerator.platform == "tpu":
        return nullcontext()
    from jax.sharding import AbstractDevice, AbstractMesh

    device = AbstractDevice(device_kind=accelerator.title, num_cores=None, platform="gpu")
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def _target_config(accelerator: Accelerator) -> str:
    """XLA's description of a GPU, a text proto."""
    fields = _GPU | dict(accelerator.description)
    fields["memory_bandwidth"] = int(accelerator.bandwidth)
    fields["device_memory_size"] = accelerator.memory
    fields["name"] = f'"{accelerator.title}"'
    described = "\n".join(
        f"  {name} {value}" if str(value).startswith("{") else f"  {name}: {value}"
        for name, value in fields.items()
    )
    return (
        f"gpu_device_info {{\n{described}\n}}\n"
        f'platform_name: "CUDA"\ndevice_description_str: "{accelerator.title}"\n'
    )


def compile_lowered(
    lowered: jax.stages.Lowered, accelerator: Accelerator, dump: Path
) -> jax.stages.Compiled:
    """Compiles a lowered program.

    Args:
      lowered: the program.
      accelerator: what it was lowered for.
      dump: an empty folder, where the compiler for GPUs writes its schedule.

    Raises:
      UserError: it does not fit into the device's memory.
    """
    options: dict[str, Any] = {}
    if accelerator.platform == "cuda":
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
