"""Draws and filters are, bit by bit, those of thresholds found by bisection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.decoding import sampling as sampling_module
from dart_jax.decoding import vocabulary as vocabulary_module
from dart_jax.decoding.sampling import Sampling, SamplingValues
from tests.support.draws import draw_at, noise_of

NODES = 6


@jax.jit
def bisected(sampling: SamplingValues, logits: jax.Array) -> jax.Array:
    """Scales and filters; both thresholds are the largest that keep enough, found bit by bit."""
    assert sampling.temperature is not None
    logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / sampling.temperature

    def search(order, enough):
        def halve(_, bounds):
            low, high = bounds
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            kept = enough(order >= middle)
            return jnp.where(kept, middle, low), jnp.where(kept, high, middle)

        low = jnp.full((*order.shape[:-1], 1), -(2**31), jnp.int32)
        return order >= jax.lax.fori_loop(0, 32, halve, (low, -(low + 1)))[0]

    def ordered(x):
        bits = jax.lax.bitcast_convert_type(x, jnp.int32)
        return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)

    if sampling.top_k is not None:
        k = sampling.top_k
        kept = search(ordered(logits), lambda kept: kept.sum(-1, keepdims=True) >= k)
        logits = jnp.where(kept, logits, -jnp.inf)
    if sampling.top_p is not None:
        p = jax.nn.softmax(logits, axis=-1)
        least = sampling.top_p

        def enough(kept):
            return jnp.sum(jnp.where(kept, p, 0.0), -1, keepdims=True) >= least

        kept = search(ordered(p), enough)
        logits = jnp.where(kept, logits, -jnp.inf)
    return logits


draw = jax.jit(draw_at)
scale_and_filter = jax.jit(sampling_module.scale_and_filter)


def rows(vocab: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(vocab)
    normal = rng.normal(0, 3, (2, NODES, vocab)).astype(np.float32)
    few = np.where(rng.random(normal.shape) < 0.3, normal, -np.inf)
    few[..., 0] = 0
    return {
        "different": normal,
        "ties": np.round(normal),
        "nearly even": normal / 1000,
        "even": np.zeros_like(normal),
        "infinite": few,
    }


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("vocab", [40, 300, 5003])
@pytest.mark.parametrize("temperature", [1.0, 1e-30])
def test_draws_and_filters_are_those_of_bisection(vocab, temperature):
    position = jnp.arange(4, dtype=jnp.int32)[None] + jnp.asarray([[5], [90]], jnp.int32)
    levels = jnp.asarray([[0, 1, 1, 2, 3, 3]] * 2, jnp.int32)
    noise = noise_of(3, position, vocab)
    noise = np.take_along_axis(np.asarray(noise), np.asarray(levels)[:, :, None], axis=1)
    filters = [(k, 1.0) for k in (1, 7, 128, 129, 300, 2 * vocab)]
    filters += [(0, p) for p in (1e-6, 0.3, 0.9, 0.9999999)] + [(50, 0.9), (200, 0.5)]
    for name, logits in rows(vocab).items():
        for top_k, top_p in filters:
            values = Sampling(temperature, top_k, top_p).values()
            expected = np.asarray(bisected(values, logits))
            about = f"{name}, top-k {top_k}, top-p {top_p}"
            ours = scale_and_filter(values, logits)
            np.testing.assert_array_equal(ours, expected, err_msg=about)
            tokens = draw(values, jnp.asarray(logits), jnp.uint32(3), position, levels)
            np.testing.assert_array_equal(tokens, np.argmax(expected + noise, -1), err_msg=about)


def test_both_ways_to_find_the_largest_agree():
    """The one for CPUs and the one for accelerators."""
    inf, nan = np.inf, np.nan
    x = [[1, 2, 2], [-inf, -inf, -inf], [0, nan, inf], [nan, nan, nan], [inf, 1, inf], [-1, -2, -1]]
    one, two = (
        f(jnp.asarray(x))
        for f in (vocabulary_module._argmax_in_one, vocabulary_module._argmax_in_two)
    )
    assert one.tolist() == two.tolist() == [1, 0, -1, -1, 0, 0]
    assert one.dtype == two.dtype == jnp.int32
