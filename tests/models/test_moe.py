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

D, F = 6, 5
KERNELS = jax.jit(partial(routed, interpret=True))
DIVIDE = jax.jit(divide, static_argnums=(1, 2))
IMPLEMENTATIONS = [jax.jit(loop_over_experts), jax.jit(grouped), KERNELS]


def one_by_one(rows, weights, experts, gate, up, down):
    """Every row through each of its experts, in double precision."""
    out = np.zeros(rows.shape)
    for t, k in np.ndindex(experts.shape):
        e = experts[t, k]
        g = rows[t] @ gate[e]
        out[t] += weights[t, k] * ((g / (1 + np.exp(-g)) * (rows[t] @ up[e])) @ down[e])
    return out


def arrays(rng, rows, count, k):
    """Random rows, their weights, distinct experts, and kernels."""
    experts = np.stack([rng.permutation(count)[:k] for _ in range(rows)]).astype(np.int32)
    floats = [(rows, D), (rows, k), (count, D, F), (count, D, F), (count, F, D)]
    x, weights, *kernels = (rng.normal(size=shape) for shape in floats)
    return x, weights, experts, *kernels


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, 4, 1), (1, 4, 4), (3, 7, 2), (17, 3, 2)]))
def test_every_implementation_sums_the_experts_outputs(seed, shape):
    given = arrays(np.random.default_rng(seed), *shape)
    expected = one_by_one(*given)
    single = [a.astype(np.float32) if a.dtype == np.float64 else a for a in given]
    for implementation in IMPLEMENTATIONS:
        np.testing.assert_allclose(implementation(*single), expected, rtol=0, atol=2e-4)


def test_experts_that_no_row_chose_are_not_read():
    x, weights, _, *kernels = arrays(np.random.default_rng(0), 3, 5, 2)
    for kernel in kernels:
        kernel[[1, 2, 4]] = np.nan
    experts = np.array([[0, 3], [3, 0], [0, 3]], np.int32)
    floats = [a.astype(np.float32) for a in (x, weights, *kernels)]
    for read in (jax.jit(loop_over_experts), KERNELS):
        assert np.isfinite(read(*floats[:2], experts, *floats[2:])).all()


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
