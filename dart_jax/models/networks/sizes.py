"""Bytes of a model's weights and of its cache, from its config alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import AnyDrafterConfig
from dart_jax.models.kernels.int8 import round_params
from dart_jax.models.networks.pure import abstract_params

# Targets, and drafters with weights.
WithWeights = AnyDrafterConfig | TargetConfig


def stored_shapes(config: WithWeights, dtype: DTypeLike, *, int8: bool, fused: bool = False) -> Any:
    """Returns the shapes of a model's parameters: with `int8`, linear layers and experts are in 8
    bits; with `fused`, the projections of one input are one."""
    shapes = abstract_params(config, fused, jnp.dtype(dtype))
    return jax.eval_shape(round_params, shapes) if int8 else shapes


def weight_bytes(config: WithWeights, dtype: DTypeLike, int8: bool = False) -> int:
    """Returns the bytes of a model's weights; `int8`: linear layers and experts in 8 bits."""
    if isinstance(config, TargetConfig):
        if int8:  # the head is rounded, the embeddings are not
            config = dataclasses.replace(config, tie_word_embeddings=False)
        if config.moe is None and (layers := config.num_hidden_layers) > 2:
            # All layers are the same, and making the shapes of 80 would take half a minute.
            one, two = (
                weight_bytes(dataclasses.replace(config, num_hidden_layers=n), dtype, int8)
                for n in (1, 2)
            )
            return one + (layers - 1) * (two - one)
    leaves = jax.tree.leaves(stored_shapes(config, dtype, int8=int8))
    return sum(x.size * x.dtype.itemsize for x in leaves)


def device_bytes(config: WithWeights, dtype: DTypeLike, int8: bool, shards: int) -> int:
    """Returns the bytes of a model's weights on each of so many devices that share it: all have the
    table of embeddings, and where they are several, an untied head."""
    if shards == 1:
        return weight_bytes(config, dtype, int8)
    if isinstance(config, TargetConfig):
        config = dataclasses.replace(config, tie_word_embeddings=False)
    whole, table = weight_bytes(config, dtype, int8), 0
    if isinstance(config, TargetConfig):
        table = jnp.dtype(dtype).itemsize * config.vocab_size * config.hidden_size
    return table + (whole - table) // shards


def cache_row(config: WithWeights, dtype: DTypeLike) -> int:
    """Returns the bytes of one token's keys and values in all layers of a model's cache."""
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    return jnp.dtype(dtype).itemsize * layers * 2 * heads * config.head_dim
