"""Experts: every implementation against a loop over tokens; the kernels in their interpreter."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.models.kernels.int8 import round_kernel
from dart_jax.models.layers.moe_kernel import routed
from dart_jax.models.layers.moe_plain import grouped, loop_over_experts

D, F = 40, 72
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
        (32, 9, 1, False, "float32"),
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
