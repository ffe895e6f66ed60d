"""Mixture-of-experts layer: exact, no token is dropped."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from dart_jax.models.config import MoEConfig
from dart_jax.models.kernels.inputs import Inputs, computed
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.layers.dense import GatedMLP, Init, Linear
from dart_jax.models.layers.moe_kernel import fits, routed
from dart_jax.models.layers.moe_plain import grouped, loop_over_experts
from dart_jax.models.sharding.collectives import shard_offset, total


class Experts(nnx.Module):
    """Weights of E gated MLPs of width F."""

    def __init__(self, d: int, config: MoEConfig, init: Init):
        e, f = config.num_experts, config.intermediate_size
        self.gate_proj = init.random(e, d, f)
        self.up_proj = init.random(e, d, f)
        self.down_proj = init.random(e, f, d)


class MoE(nnx.Module):
    """Routes every row to its most likely experts and sums their outputs by router weight.

    Split, each device has some of the experts and some columns of the shared one, and all that they
    write is added up.
    """

    def __init__(self, d: int, config: MoEConfig, options: LayerOptions, init: Init):
        self.config = config
        self.options = options
        self.router = Linear(d, config.num_experts, init)
        self.experts = Experts(d, config, init)
        if config.shared_intermediate_size is not None:
            width = config.shared_intermediate_size
            # What it writes is added up together with the experts' outputs.
            whole = dataclasses.replace(options, shards=1)
            self.shared_expert = GatedMLP(d, width, whole, init)
            self.shared_expert_gate = Linear(d, 1, init)

    def __call__(self, inputs: Inputs, residual: jax.Array | None = None) -> jax.Array:
        """[..., D] -> [..., D]; added to the residual stream, if it is given."""
        x = computed(inputs)
        rows = x.reshape(-1, x.shape[-1])
        weights, experts = self.route(rows)
        params = self.experts.gate_proj, self.experts.up_proj, self.experts.down_proj
        kernels = [param.get_value() for param in params]
        count = kernels[0].shape[0]
        if self.options.split:
            # Of other devices' experts nothing is known here: numbers beyond the own ones.
            local = experts - shard_offset(count)
            experts = jnp.where((local >= 0) & (local < count), local, count)
        if self.options.experts == "jax" or not fits(kernels[0]):
            arguments = rows, weights, experts, *kernels
            ways = {"cpu": loop_over_experts, "tpu": partial(grouped, converted=False)}
            out = jax.lax.platform_dependent(*arguments, **ways, default=grouped)
        else:
            interpret = self.options.experts == "interpret"
            out = routed(rows, weights, experts, *kernels, interpret=interpret)
        if self.config.shared_intermediate_size is not None:
            gate = jax.nn.sigmoid(self.shared_expert_gate(rows))
            out = out + gate * self.shared_expert(rows)
        out = out.reshape(x.shape)
        if self.options.split:
            out = total(out)
        return out if residual is None else residual + out

    def route(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Rows [T, D] -> weights [T, k] in the rows' dtype, and experts int32 [T, k]."""
        probability = jax.nn.softmax(self.router(rows).astype(jnp.float32), axis=-1)
        weights, experts = jax.lax.top_k(probability, self.config.num_experts_per_tok)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return weights.astype(rows.dtype), experts
