"""Mixture-of-experts layer: exact, no token is dropped.

Two implementations compute the same sums. `loop_over_experts` reads only the weights of experts
that some row is routed to, and is fastest on CPU for every number of rows; `grouped` sorts the rows
by expert and calls `jax.lax.ragged_dot`, for which accelerators have kernels.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.config import MoEConfig
from dart_jax.models.layers import INIT, GatedMLP, Linear


class Experts(nnx.Module):
    """The weights of E gated MLPs of width F."""

    def __init__(self, d: int, config: MoEConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        e, f = config.num_experts, config.intermediate_size
        self.gate_proj = nnx.Param(INIT(rngs.params(), (e, d, f), dtype))
        self.up_proj = nnx.Param(INIT(rngs.params(), (e, d, f), dtype))
        self.down_proj = nnx.Param(INIT(rngs.params(), (e, f, d), dtype))


class MoE(nnx.Module):
    """Routes every row to its most likely experts and sums their outputs by router weight.

    A shared expert, if there is one, sees every row; its output is weighted by a gate of its own.
    """

    def __init__(
        self,
        d: int,
        config: MoEConfig,
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
        fused: bool = False,
    ):
        self.config = config
        self.router = Linear(d, config.num_experts, dtype=dtype, rngs=rngs)
        self.experts = Experts(d, config, dtype=dtype, rngs=rngs)
        if config.shared_intermediate_size is not None:
            width = config.shared_intermediate_size
            self.shared_expert = GatedMLP(d, width, dtype=dtype, rngs=rngs, fused=fused)
            self.shared_expert_gate = Linear(d, 1, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        rows = x.reshape(-1, x.shape[-1])
        weights, experts = self.route(rows)
        kernels = tuple(
            param[...]
            for param in (self.experts.gate_proj, self.experts.up_proj, self.experts.down_proj)
        )
        out = jax.lax.platform_dependent(
            rows, weights, experts, *kernels, cpu=loop_over_experts, default=grouped
        )
        if self.config.shared_intermediate_size is not None:
            gate = jax.nn.sigmoid(self.shared_expert_gate(rows))
            out = out + gate * self.shared_expert(rows)
        return out.reshape(x.shape)

    def route(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Rows [T, D] -> weights [T, k] in the rows' dtype, and experts int32 [T, k]."""
        probability = jax.nn.softmax(self.router(rows).astype(jnp.float32), axis=-1)
        weights, experts = jax.lax.top_k(probability, self.config.num_experts_per_tok)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return weights.astype(rows.dtype), experts


def loop_over_experts(
    rows: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    """Runs all rows through each expert in turn; skips experts that no row chose.

    Args:
      rows: [T, D].
      weights: [T, k].
      experts: int32 [T, k], each row's experts, all distinct.
      gate: kernels [E, D, F].
      up: kernels [E, D, F].
      down: kernels [E, F, D].
    """

    def add(expert: jax.Array, total: jax.Array) -> jax.Array:
        share = jnp.sum(jnp.where(experts == expert, weights, 0), axis=1, keepdims=True)

        def run(total: jax.Array) -> jax.Array:
            hidden = jax.nn.silu(rows @ gate[expert]) * (rows @ up[expert])
            return total + (hidden @ down[expert]) * share

        return jax.lax.cond(jnp.any(experts == expert), run, lambda total: total, total)

    return jax.lax.fori_loop(0, gate.shape[0], add, jnp.zeros_like(rows))


def grouped(
    rows: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    """Same as `loop_over_experts`, with one copy of every row per expert, sorted by expert."""
    k = experts.shape[1]
    chosen = experts.reshape(-1)
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=gate.shape[0]).astype(jnp.int32)
    copies = jnp.take(rows, order // k, axis=0)
    hidden = jax.nn.silu(jax.lax.ragged_dot(copies, gate, sizes))
    hidden = hidden * jax.lax.ragged_dot(copies, up, sizes)
    out = jax.lax.ragged_dot(hidden, down, sizes)
    back = jnp.take(out, jnp.argsort(order), axis=0).reshape(*experts.shape, -1)
    return jnp.sum(back * weights[:, :, None], axis=1)
