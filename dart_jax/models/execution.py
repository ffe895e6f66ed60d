"""How a platform computes a model best; the results are the same up to rounding."""

from __future__ import annotations

import dataclasses

import jax

from dart_jax.models.attention import flash
from dart_jax.models.attention.attend import AttentionKernel


@dataclasses.dataclass(frozen=True)
class Execution:
    """What a model is compiled with. The defaults are those of a CPU.

    Attributes:
      attention: what computes attention to cached rows; see `AttentionKernel`.
      least_rows: rows that a step of the target has at least, over all sequences. XLA computes the
        product of a single bfloat16 row on a GPU as multiplications that are rounded, written to
        memory and then summed; with 8 rows it is a matrix product, as in the verification of a
        tree.
    """

    attention: AttentionKernel = "dense"
    least_rows: int = 1

    @classmethod
    def of_gpu(cls, compute_capability: float) -> Execution:
        """For an NVIDIA GPU; Triton's kernels need compute capability 8, an A100's, or higher."""
        usable = compute_capability >= 8 and flash.available()
        return cls("triton" if usable else "dense", least_rows=8)

    @classmethod
    def here(cls) -> Execution:
        """For this process's platform."""
        device = jax.local_devices()[0]
        if device.platform == "gpu" and "cuda" in getattr(device.client, "platform_version", ""):
            return cls.of_gpu(float(device.compute_capability))
        return cls()
