"""The small object that layers are built with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dart_jax.models.kernels.choices import AttentionKernel, CacheDtype, ExpertsKernel
from dart_jax.models.kernels.matmul import narrowed


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """Kernels, form and share of a model's layers; plain JAX on one device by default.

    Attributes:
      attention: the kernel of attention to cached rows.
      experts: the kernel of mixtures of experts.
      shards: devices that share the model's weights.
      fused: whether projections that read the same input are one (see `platform.weights`).
      kv: dtype of keys and values, rounded once, when they are made: new rows have the same bits as
        when they are cached.
    """

    attention: AttentionKernel = "dense"
    experts: ExpertsKernel = "jax"
    shards: int = 1
    fused: bool = False
    kv: CacheDtype = "auto"

    @property
    def split(self) -> bool:
        """Returns True if a device has a part of each layer."""
        return self.shards > 1

    def cache_dtype(self, dtype: DTypeLike) -> DTypeLike:
        """Returns the dtype of keys and values, of a model whose activations have `dtype`."""
        return dtype if self.kv == "auto" else jnp.dtype(self.kv)

    def rounded(self, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """New keys and values, in the dtype in which they are cached."""
        dtype = self.cache_dtype(k.dtype)
        return narrowed(k, dtype).astype(dtype), narrowed(v, dtype).astype(dtype)
