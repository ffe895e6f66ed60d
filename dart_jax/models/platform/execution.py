"""The way in which a platform computes models; the results are the same up to rounding."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from dart_jax.errors import UserError
from dart_jax.models import cpu
from dart_jax.models.attention.native import fits_native
from dart_jax.models.config import TargetConfig
from dart_jax.models.kernels import pallas
from dart_jax.models.kernels.choices import (
    AttentionChoice,
    AttentionKernel,
    CacheDtype,
    ExpertsKernel,
    WeightsDtype,
)
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.layers.dense import Params
from dart_jax.models.platform.weights import WeightsForm, in_blocks
from dart_jax.models.sharding.devices import Devices

_NEEDED = {
    "native": "a CPU and a jaxlib that can call the C++ core",
    "triton": "an NVIDIA GPU of compute capability 8 or higher and a version of JAX with Pallas' "
    "Triton backend",
    "mosaic": "a TPU",
}
_KV_NEEDS = (
    "keys and values in bfloat16 with activations in float32 need the C++ core's attention on "
    "one CPU, and this is {}; leave --kv out (with --dtype bfloat16 all are in it)"
)


@dataclasses.dataclass(frozen=True)
class Execution:
    """Settings that models are compiled with: by default plain JAX on one device, as in training.

    Attributes:
      attention: the kernel of attention to cached rows (see `LayerOptions`).
      experts: the kernel of mixtures of experts.
      min_rows: rows that a step of the target has at least, over all sequences. On a GPU XLA rounds
        the multiplications of a single bfloat16 row before it sums them; 8 rows are a matrix
        product, as in the verification of a tree.
      weights: the form of loaded weights.
      devices: the devices that decode together.
      kv: dtype of cached keys and values (see `LayerOptions`).
    """

    attention: AttentionKernel = "dense"
    experts: ExpertsKernel = "jax"
    min_rows: int = 1
    weights: WeightsForm = WeightsForm()
    devices: Devices = Devices()
    kv: CacheDtype = "auto"

    @property
    def target(self) -> LayerOptions:
        """For the target's layers."""
        return LayerOptions(self.attention, self.experts, self.devices.shards, kv=self.kv)

    @property
    def drafter(self) -> LayerOptions:
        """For the drafter's layers."""
        return LayerOptions(self.attention, self.experts, self.devices.drafter_shards, kv=self.kv)

    @property
    def draws_in_core(self) -> bool:
        """Returns True if the C++ core draws tokens: where it computes attention, too."""
        return self.attention == "native"

    def in_dtype(self, dtype: DTypeLike) -> Execution:
        """Returns the same for weights in a dtype: with float16, keys and values are in it, too,
        and a CPU computes plain JAX."""
        if jnp.dtype(dtype) != jnp.float16:
            return self
        weights = dataclasses.replace(self.weights, tiles=False)
        attention: AttentionKernel = "dense" if self.attention == "native" else self.attention
        return dataclasses.replace(self, attention=attention, weights=weights, kv="float16")

    def on(self, mesh: Mesh) -> Execution:
        """Returns the same on several devices. On CPUs plain JAX: they are for trying out.

        Raises:
          UserError: keys and values are in bfloat16, which only one CPU computes.
        """
        if self.kv == "bfloat16":
            raise UserError(_KV_NEEDS.format("a mesh"))
        if jax.default_backend() == "cpu":
            weights = WeightsForm(self.weights.dtype)
            return Execution(weights=weights, devices=Devices(mesh), kv=self.kv)
        return dataclasses.replace(self, devices=Devices(mesh))

    def beside(self, config: TargetConfig, target: Params) -> Execution:
        """Returns the same for a target's loaded parameters: with weights in blocks, whose inputs
        are rounded to 8 bits, the C++ core caches keys and values in bfloat16, unless told
        otherwise.

        Raises:
          UserError: these keys and values are computed by plain JAX, and `kv` is bfloat16.
        """
        fits = self.attention == "native" and fits_native(config.head_dim)
        if self.kv == "bfloat16" and not fits:
            raise UserError(_KV_NEEDS.format(f"a target with heads of {config.head_dim}"))
        if self.kv != "auto" or not fits or not in_blocks(target):
            return self
        return dataclasses.replace(self, kv="bfloat16")

    @classmethod
    def of_cpu(cls) -> Execution:
        """For a CPU; plain JAX where the C++ core cannot be called from XLA."""
        native = cpu.available()
        return cls("native" if native else "dense", weights=WeightsForm(fused=True, tiles=native))

    @classmethod
    def of_gpu(cls, compute_capability: float) -> Execution:
        """For an NVIDIA GPU; Triton's kernels need compute capability 8, an A100's, or higher."""
        weights = WeightsForm(fused=True)
        if compute_capability >= 8 and pallas.has_triton():
            return cls("triton", "triton", min_rows=8, weights=weights)
        return cls(min_rows=8, weights=weights)

    @classmethod
    def of_tpu(cls) -> Execution:
        """For a TPU, which runs as many kernels with joined projections as without."""
        return cls("mosaic")

    @classmethod
    def here(
        cls,
        attention: AttentionChoice = "auto",
        weights: WeightsDtype = "stored",
        kv: CacheDtype = "auto",
        dtype: DTypeLike = jnp.float32,
    ) -> Execution:
        """For this process's platform.

        Args:
          attention: what computes attention to cached rows; `auto` is the platform's best.
          weights: how the weights of products are stored.
          kv: how keys and values are cached.
          dtype: of activations.

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
        form = dataclasses.replace(best.weights, dtype=weights)
        kernel = best.attention if attention == "auto" else attention
        check_cache(kv, dtype)
        if kv in ("bfloat16", "float16") and dtype == jnp.dtype(kv):
            kv = "auto"
        if kv == "bfloat16" and kernel != "native":
            raise UserError(_KV_NEEDS.format(f"attention '{kernel}' on {device.device_kind}"))
        best = dataclasses.replace(best, attention=kernel, weights=form, kv=kv)
        return best.in_dtype(dtype)


def best_dtype() -> DTypeLike:
    """Returns the dtype of weights that this process's platform multiplies best."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return jnp.float32
    capability = getattr(device, "compute_capability", None)
    return best_dtype_of_gpu(float(capability)) if capability else jnp.bfloat16


def best_dtype_of_gpu(compute_capability: float) -> Literal["bfloat16", "float16"]:
    """Returns the same for an NVIDIA GPU: before compute capability 8 every weight in bfloat16
    would be converted in memory first."""
    return "bfloat16" if compute_capability >= 8 else "float16"


def check_cache(kv: CacheDtype, dtype: DTypeLike) -> None:
    """Raises UserError if keys and values would be wider than weights in `dtype`, or other than
    these, except in bfloat16 beside float32."""
    same = kv == "auto" or dtype == jnp.dtype(kv)
    if not same and (kv != "bfloat16" or dtype != jnp.float32):
        raise UserError(
            f"keys and values in {kv} need weights in it; leave --kv out, or add --dtype {kv}"
        )
