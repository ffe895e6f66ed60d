"""Converts between NNX modules and pure functions over plain dicts of arrays.

Dispatching a jitted function over a dict takes microseconds, `nnx.jit` over a module takes
milliseconds; so modules exist only while tracing.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import (
    BlockConfig,
    DartConfig,
    DraftLayerConfig,
    Eagle3Config,
)
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.models.layers.dense import Init, Params
from dart_jax.models.networks.block import BlockDrafter
from dart_jax.models.networks.dart import DartDrafter
from dart_jax.models.networks.eagle3 import Eagle3Drafter
from dart_jax.models.networks.target import Target
from dart_jax.models.platform.weights import is_fused
from dart_jax.models.sharding.rules import one_device

_MODULES = {
    TargetConfig: Target,
    DartConfig: DartDrafter,
    Eagle3Config: Eagle3Drafter,
    BlockConfig: BlockDrafter,
}


@functools.cache
def _split(
    config: TargetConfig | DraftLayerConfig,
    options: LayerOptions = LayerOptions(),
    dtype: DTypeLike = jnp.float32,
) -> tuple[nnx.GraphDef, nnx.State]:
    module = _MODULES[type(config)]
    return nnx.split(nnx.eval_shape(lambda: module(config, options, Init(dtype))))


def abstract_params(
    config: TargetConfig | DraftLayerConfig, fused: bool = False, dtype: DTypeLike = jnp.float32
) -> Params:
    """Returns the nested dict of `jax.ShapeDtypeStruct` that the model's parameters must match,
    before or after `platform.weights.fuse`."""
    return nnx.to_pure_dict(_split(config, LayerOptions(fused=fused), dtype)[1])


def dtype_of(target: Params) -> np.dtype:
    """Returns the dtype that a target was loaded in: of its activations, or float16."""
    table = target["embed_tokens"]
    if isinstance(table, Tiles) or table.dtype != np.float16:
        return target["norm"]["scale"].dtype
    return table.dtype


def init_params(
    config: TargetConfig | DraftLayerConfig, seed: int, dtype: DTypeLike = jnp.float32
) -> Params:
    """Returns random parameters as a nested dict of arrays."""
    # Not jitted: a program of all takes seconds to compile, programs of single arrays are shared.
    init = Init(dtype, nnx.Rngs(jax.random.key(seed)))
    module = _MODULES[type(config)](config, LayerOptions(), init)
    return nnx.to_pure_dict(nnx.split(module)[1])


def bind(
    config: TargetConfig | DraftLayerConfig, params: Params, options: LayerOptions = LayerOptions()
) -> Any:
    """Returns the module with these parameters; call this while tracing, never in a hot loop.

    Args:
      config: the model's.
      params: its parameters; where devices share the model, one device's part of them.
      options: of its layers; the parameters tell their form themselves.
    """
    options = dataclasses.replace(options, fused=is_fused(params))
    if options.split:
        config = one_device(config, options.shards)
    return nnx.merge(_split(config, options)[0], params)
