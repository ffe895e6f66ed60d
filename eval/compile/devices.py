"""Accelerators that can be compiled for without having one: XLA is told what they are like.

GPUs need jaxlib's CUDA plugin and NVIDIA's assembler, TPUs need libtpu; neither needs a driver. The
process itself runs on the CPU.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A device's kind, with the rates of its data sheet.

    Attributes:
      title: the name that the vendor gives it.
      bandwidth: bytes per second of its memory.
      rate: bfloat16 operations per second, without sparsity.
      memory: bytes.
      topology: for TPUs, the smallest slice that libtpu describes.
      description: for GPUs, what differs from `_GPU`.
    """

    title: str
    bandwidth: float
    rate: float
    memory: int
    topology: str = ""
    description: tuple[tuple[str, Any], ...] = ()

    @property
    def execution(self) -> Execution:
        """How models are computed on it."""
        return Execution.of_tpu() if self.topology else Execution.of_gpu(9)

    @property
    def platform(self) -> str:
        """JAX's name of the platform: cuda or tpu."""
        return "tpu" if self.topology else "cuda"


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
ACCELERATORS = {
    "h100": Accelerator("NVIDIA H100 SXM", 3.35e12, 990e12, 80 * 10**9, description=_HOPPER),
    "h200": Accelerator("NVIDIA H200 SXM", 4.8e12, 990e12, 141 * 10**9, description=_HOPPER),
    "b200": Accelerator(
        "NVIDIA B200", 8e12, 2250e12, 180 * 10**9, description=_gpu(10, 148, 1.97, 126)
    ),
    "v5e": Accelerator("TPU v5e", 0.819e12, 197e12, 16 * 2**30, topology="v5e:2x2"),
    "v5p": Accelerator("TPU v5p", 2.765e12, 459e12, 95 * 2**30, topology="v5p:2x2x1"),
    "v6e": Accelerator("TPU v6e", 1.64e12, 918e12, 32 * 2**30, topology="v6e:2x2"),
}


def compile_only(name: str) -> Any:
    """Returns a device that programs can be compiled for, but not run on.

    Raises:
      UserError: the compiler for its platform is not installed.
    """
    accelerator = ACCELERATORS[name]
    from jax.experimental import topologies

    options: dict[str, Any]
    if accelerator.platform == "cuda":
        options = {"target_config": _target_config(accelerator), "topology": "1x1x1"}
    else:
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{name}-4")
        options = {"topology_name": accelerator.topology}
    try:
        found = topologies.get_topology_desc(platform=accelerator.platform, **options)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        extra = "aot" if accelerator.platform == "cuda" else "tpu"
        reason = str(error).splitlines()[0]
        raise UserError(
            f"cannot compile for {name}: {reason}; pip install 'dart-jax[{extra}]'"
        ) from None
    return found.devices[0]


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


class _NoClient:
    """Takes the place of the client that lowering a Python callback asks for."""

    def make_python_callback_from_host_send_and_recv(self, *_: Any) -> None:
        return None


def allow_callbacks() -> None:
    """Lets programs with Python callbacks be lowered for a platform that has no client.

    JAX has no public way to do that; the names are those of jax 0.10 to 0.12.
    """
    from jax._src.interpreters import mlir

    real = mlir.ModuleContext.get_backend
    if getattr(real, "allows_callbacks", False):
        return

    def get_backend(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return real(self, *args, **options)
        except (RuntimeError, ValueError):
            return _NoClient()

    get_backend.allows_callbacks = True  # type: ignore[attr-defined]
    mlir.ModuleContext.get_backend = get_backend


def compile_lowered(
    lowered: jax.stages.Lowered, accelerator: Accelerator, dump: Path
) -> jax.stages.Compiled:
    """Compiles a lowered program; its Python callbacks cannot be linked without a client.

    Args:
      lowered: the program.
      accelerator: what it was lowered for.
      dump: an empty folder, where the compiler for GPUs writes its schedule (`graphs.read_graphs`).
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
    lowered._lowering.compile_args["host_callbacks"] = ()  # type: ignore[attr-defined]
    return lowered.compile(compiler_options=options)
