"""The small object that layers are built with."""

from __future__ import annotations

import dataclasses
from typing import Literal

# dense: plain JAX. native: the C++ core, for CPUs. triton: a kernel for NVIDIA GPUs. mosaic: one
# for TPUs. interpret and interpret-mosaic: these kernels step by step on any platform, for tests.
AttentionKernel = Literal["dense", "native", "triton", "mosaic", "interpret", "interpret-mosaic"]

# jax: plain JAX. triton: kernels for NVIDIA GPUs. interpret: the same kernels step by step on any
# platform, for tests.
ExpertsKernel = Literal["jax", "triton", "interpret"]


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """Kernels, form and share of a model's layers; plain JAX on one device by default.

    Attributes:
      attention: the kernel of attention to cached rows.
      experts: the kernel of mixtures of experts.
      shards: devices that share the model's weights.
      fused: whether projections that read the same input are one (see `platform.weights`).
    """

    attention: AttentionKernel = "dense"
    experts: ExpertsKernel = "jax"
    shards: int = 1
    fused: bool = False

    @property
    def split(self) -> bool:
        """Tells whether a device has a part of each layer."""
        return self.shards > 1
