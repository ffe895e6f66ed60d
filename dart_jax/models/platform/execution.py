"""How a platform computes a model best; the results are the same up to rounding."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
from jax.sharding import Mesh

from dart_jax.errors import UserError
from dart_jax.models.attention.attend import AttentionKernel
from dart_jax.models.cpu import foreign
from dart_jax.models.cpu.tiles import Packed
from dart_jax.models.drafter_config import DraftLayerConfig
from dart_jax.models.experts.moe import ExpertsKernel
from dart_jax.models.layers import Params
from dart_jax.models.platform import pallas
from dart_jax.models.platform.fusion import fuse, pack
from dart_jax.models.platform.int8 import round_params
from dart_jax.models.sharding.mesh import DATA, MODEL
from dart_jax.models.sharding.rules import SplitConfig, divides, model_specs

# How a loaded model's weights are stored: as they are, or rounded to 8 bits in the platform's own
# form: `cpu.tiles` of the C++ core on one CPU, `int8` elsewhere.
WeightsDtype = Literal["stored", "int8"]

AttentionChoice = Literal["auto", "dense", "native", "triton", "mosaic"]

_NEEDED = {
    "native": "a CPU and a jaxlib that can call the C++ core",
    "triton": "an NVIDIA GPU of compute capability 8 or higher and a version of JAX with Pallas' "
    "Triton backend",
    "mosaic": "a TPU",
}


@dataclasses.dataclass(frozen=True)
class Execution:
    """What a model is compiled with. The defaults are plain JAX, as in training.

    Attributes:
      attention: what computes attention to cached rows; see `AttentionKernel`.
      least_rows: rows that a step of the target has at least, over all sequences. XLA computes the
        product of a single bfloat16 row on a GPU as multiplications that are rounded, written to
        memory and then summed; with 8 rows it is a matrix product, as in the verification of a
        tree.
      fused: whether the projections of a loaded model are joined (see `fusion.fuse`).
      experts: what computes mixtures of experts; see `ExpertsKernel`.
      packed: how the weights of a loaded model's products are packed for the C++ core (see
        `cpu.tiles`); None if they are not.
      rounded: whether the weights of a loaded model's products are in 8 bits, with a scale for each
        output (see `int8`).
      mesh: the devices that decode together (see `dart_jax.models.sharding`); None for one.
      split_drafter: whether these share the drafter's weights, too; otherwise each has all.
    """

    attention: AttentionKernel = "dense"
    least_rows: int = 1
    fused: bool = False
    experts: ExpertsKernel = "jax"
    packed: Packed | None = None
    rounded: bool = False
    mesh: Mesh | None = None
    split_drafter: bool = False

    @property
    def shards(self) -> int:
        """Devices that share a target's weights."""
        return 1 if self.mesh is None else self.mesh.shape[MODEL]

    @property
    def drafter_shards(self) -> int:
        """Devices that share a drafter's weights."""
        return self.shards if self.split_drafter else 1

    @property
    def groups(self) -> int:
        """Groups of such devices, each with some rows of a batch."""
        return 1 if self.mesh is None else self.mesh.shape[DATA]

    @property
    def alone(self) -> Execution:
        """For a model that every device has as a whole."""
        return dataclasses.replace(self, mesh=None, split_drafter=False)

    def with_drafter(self, drafter: object) -> Execution:
        """The same for a drafter, which devices share if they can. A small language model they do
        not: it has many layers, and what each exchanges takes longer than to read its weights."""
        split = False
        if self.mesh is not None and isinstance(drafter, DraftLayerConfig):
            split = self.shards > 1 and divides(drafter, self.mesh)
        return dataclasses.replace(self, split_drafter=split)

    def on(self, mesh: Mesh) -> Execution:
        """The same on several devices. On CPUs plain JAX: they are for trying out."""
        if jax.default_backend() == "cpu":
            return Execution(rounded=self.rounded or self.packed == "int8", mesh=mesh)
        return dataclasses.replace(self, mesh=mesh)

    @classmethod
    def of_cpu(cls) -> Execution:
        """For a CPU; plain JAX where the C++ core cannot be called from XLA."""
        if foreign.available():
            return cls("native", fused=True, packed="stored")
        return cls(fused=True)

    @classmethod
    def of_gpu(cls, compute_capability: float) -> Execution:
        """For an NVIDIA GPU; Triton's kernels need compute capability 8, an A100's, or higher."""
        if compute_capability >= 8 and pallas.has_triton():
            return cls("triton", least_rows=8, fused=True, experts="triton")
        return cls(least_rows=8, fused=True)

    @classmethod
    def of_tpu(cls) -> Execution:
        """For a TPU, which runs as many kernels with joined projections as without."""
        return cls("mosaic")

    @classmethod
    def here(
        cls, attention: AttentionChoice = "auto", weights_dtype: WeightsDtype = "stored"
    ) -> Execution:
        """For this process's platform.

        Args:
          attention: what computes attention to cached rows; `auto` is the platform's best.
          weights_dtype: how the weights of products are stored.

        Raises:
          UserError: the platform does not have it.
        """
        device, best = jax.local_devices()[0], cls()
        if device.platform == "cpu":
            best = cls.of_cpu()
        elif device.platform == "gpu" and "cuda" in getattr(device.client, "platform_version", ""):
            best = cls.of_gpu(float(device.compute_capability))
        elif device.platform == "tpu":
            best = cls.of_tpu()
        if attention not in ("auto", "dense", best.attention):
            raise UserError(
                f"attention '{attention}' needs {_NEEDED[attention]}; this is {device.device_kind} "
                f"with JAX {jax.__version__}; choose 'auto'"
            )
        if attention != "auto":
            best = dataclasses.replace(best, attention=attention)
        if weights_dtype == "stored":
            return best
        if best.packed is not None:
            return dataclasses.replace(best, packed=weights_dtype)
        return dataclasses.replace(best, rounded=True)

    def prepare(self, params: Params, config: SplitConfig | None = None) -> Params:
        """Returns loaded parameters as they are used; consumes `params`. `config`: the model's, if
        devices share it."""
        if self.rounded:
            params = round_params(params)
        if self.mesh is not None and config is not None:
            return _fuse_parts(self.mesh, config, params) if self.fused else params
        params = fuse(params) if self.fused else params
        return pack(params, self.packed) if self.packed else params


def _fuse_parts(mesh: Mesh, config: SplitConfig, params: Params) -> Params:
    """`fuse` for the part of every device."""
    parts = model_specs(config, params)
    joined = model_specs(config, jax.eval_shape(fuse, params))
    run = jax.shard_map(fuse, mesh=mesh, in_specs=(parts,), out_specs=joined, check_vma=False)
    return jax.jit(run, donate_argnums=0)(params)
