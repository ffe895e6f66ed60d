"""Experts: every implementation against a loop over tokens; the kernels in their interpreter."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_jax.models.config import MoEConfig
from dart_jax.models.experts.kernel import divide, routed
from dart_jax.models.experts.moe import MoE
from dart_jax.models.experts.plain import grouped, loop_over_experts
from dart_jax.models.kernels.int8 import round_kernel

D, F = 40, 72
DIVIDE = jax.jit(divide, static_argnums=(1, 2))
IMPLEMENTATIONS = {
    "loop": loop_over_experts,
    "grouped": grouped,
    "grouped as stored": partial(grouped, converted=False),
    "kernels": partial(routed, interpret=True),
}


def one_by_one(rows, weights, experts, gate, up, down):
    """Every row through each of its experts, in double precision; none for those elsewhere."""
    out = np.zeros(rows.shape)
    for t, k in np.argwhere(experts < len(gate)):
        e = experts[t, k]
        g = rows[t] @ gate[e]
        out[t] += weights[t, k] * ((g / (1 + np.exp(-g)) * (rows[t] @ up[e])) @ down[e])
    return out


@pytest.mark.long(keep=4)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("rows", "count", "k", "int8", "dtype"),
    [
        (1, 4, 4, False, "float32"),
        (3, 7, 2, True, "bfloat16"),
        (17, 3, 2, True, "float32"),
        (70, 6, 2, False, "bfloat16"),
    ],
)
def test_the_experts_outputs_are_summed(implementation, rows, count, k, int8, dtype):
    """Experts that no row chose are not read, but by the product of groups."""
    rng = np.random.default_rng(rows)
    shapes = [(rows, D), (rows, k), (count, D, F), (count, D, F), (count, F, D)]
    x, weights, *kernels = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    experts = np.stack([rng.permutation(count)[:k] for _ in range(rows)]).astype(np.int32)
    experts[0, 0] = count  # another device's
    if int8:
        kernels = list(map(round_kernel, kernels))
        exact = [np.float64(each.values) * np.float64(each.scale)[:, None] for each in kernels]
    else:
        exact = [np.float64(kernel) for kernel in kernels]
        unused = np.setdiff1d(np.arange(count), experts)
        if not implementation.startswith("grouped"):
            kernels = [kernel.at[unused].set(jnp.nan) for kernel in kernels]
    expected = one_by_one(np.float64(x), np.float64(weights), experts, *exact)
    got = jax.jit(IMPLEMENTATIONS[implementation])(x, weights, experts, *kernels)
    assert got.dtype == dtype
    tolerance = (1e-5 if dtype == "float32" else 2e-2) * np.abs(expected).max()
    np.testing.assert_allclose(np.float64(got), expected, rtol=0, atol=tolerance)


@settings(max_examples=25)
@given(st.data())
def test_blocks_have_every_copy_once_and_one_expert_each(data):
    rows, count = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 9))
    k, size = data.draw(st.integers(1, count)), data.draw(st.sampled_from([1, 4, 16]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    few = rng.permutation(count)[: max(k, count // 2)]  # some experts have no rows
    experts = np.stack([rng.permutation(few)[:k] for _ in range(rows)]).astype(np.int32)
    blocks = jax.tree.map(np.asarray, DIVIDE(experts, count, size))
    assert len(np.unique(blocks.places)) == rows * k
    expected = np.full(blocks.rows.shape, rows)
    expected[blocks.places] = np.arange(rows)[:, None]
    np.testing.assert_array_equal(blocks.rows, expected)  # and none elsewhere
    np.testing.assert_array_equal(blocks.experts[blocks.places // size], experts)
    needed = -(-np.bincount(experts.reshape(-1), minlength=count) // size)
    assert blocks.used == needed.sum() <= len(blocks.experts)
    assert blocks.places.max() < blocks.used[0] * size


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_routing(normed, dtype):
    module = MoE(D, MoEConfig(5, 3, F, norm_topk_prob=normed), dtype=dtype, rngs=nnx.Rngs(0))
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(4, D)) * 9, dtype)
    weights, experts = module.route(rows)
    probability = jax.nn.softmax(module.router(rows).astype(jnp.float32), axis=-1)
    assert (experts.tolist() == np.argsort(-np.asarray(probability))[:, :3]).all()
    assert weights.dtype == dtype
    chosen = np.take_along_axis(np.asarray(probability), np.asarray(experts), axis=1)
    if normed:
        chosen = chosen / chosen.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, chosen.astype(dtype), rtol=1e-6)
