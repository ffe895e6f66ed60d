"""How a platform computes a model best; the results are the same up to rounding."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax

from dart_jax.errors import UserError
from dart_jax.models.attention.attend import AttentionKernel
from dart_jax.models.cpu import foreign
from dart_jax.models.cpu.tiles import WeightsDtype
from dart_jax.models.experts.moe import ExpertsKernel
from dart_jax.models.layers import Params
from dart_jax.models.platform import pallas
from dart_jax.models.platform.fusion import fuse, pack

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
    """

    attention: AttentionKernel = "dense"
    least_rows: int = 1
    fused: bool = False
    experts: ExpertsKernel = "jax"
    packed: WeightsDtype | None = None

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
        if best.packed is None:
            raise UserError(
                f"weights in {weights_dtype} need {_NEEDED['native']}; this is "
                f"{device.device_kind} with JAX {jax.__version__}; choose 'stored'"
            )
        return dataclasses.replace(best, packed=weights_dtype)

    def prepare(self, params: Params) -> Params:
        """Returns loaded parameters as they are used; consumes `params`."""
        params = fuse(params) if self.fused else params
        return pack(params, self.packed) if self.packed else params
