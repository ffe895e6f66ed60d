"""Filters against sorts, draws against their noise and their probabilities, JAX's against the C++
core's, and the largest of long rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import native
from scipy.stats import chisquare

from dart_jax.decoding import sampling as sampling_module
from dart_jax.decoding import vocabulary
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.sampling import SamplingValues
from dart_jax.decoding.vocabulary import exact_top_k
from dart_jax.errors import UserError
from dart_jax.models.cpu import available
from tests.support.draws import draw_at, noise_of

VOCAB = 40

filter_jitted = jax.jit(sampling_module.filter_logits)
draw_jitted = jax.jit(draw_at, static_argnames="core")


def filter_logits(sampling, logits):
    return filter_jitted(sampling.values(), logits)


def draw(sampling, *arguments):
    """JAX's draws, which the C++ core's must equal."""
    drawn = draw_jitted(sampling.values(), *arguments)
    if available() and jax.default_backend() == "cpu":
        by_core = draw_jitted(sampling.values(), *arguments, core=True)
        np.testing.assert_array_equal(by_core, drawn)
    return drawn


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def literal_filter(sampling, logits):
    """[V] -> the same with -inf; all that equal the last one kept are kept, too."""
    kept = logits.copy()
    if 0 < sampling.top_k < len(kept):
        kept[kept < np.sort(kept)[-sampling.top_k]] = -np.inf
    if sampling.top_p < 1:
        probability = softmax(kept)
        ordered = np.sort(probability)[::-1]
        last = np.searchsorted(np.cumsum(ordered), sampling.top_p)
        kept[probability < ordered[min(last, len(kept) - 1)]] = -np.inf
    if sampling.min_p:
        probability = softmax(kept)
        kept[probability < sampling.min_p * probability.max()] = -np.inf
    return kept


def levels_of(position):
    """The levels if each node has its own position."""
    return jnp.broadcast_to(jnp.arange(position.shape[1], dtype=jnp.int32)[None], position.shape)


FILTERS = [(k, 1.0, 0.0) for k in (0, 1, 7, 128, 129, 300, 10_000)]
FILTERS += [(0, p, 0.0) for p in (1e-6, 0.5, 0.9)] + [(0, 1.0, p) for p in (0.1, 1.0)]
FILTERS += [(7, 0.9, 0.0), (20, 0.95, 0.2), (200, 0.5, 0.0)]


def rows(vocab):
    """Logits of one row of 4 nodes: different, many of them equal, all equal, most of them -inf."""
    rng = np.random.default_rng(vocab)
    normal = rng.normal(0, 3, (1, 4, vocab)).astype(np.float32)
    few = np.where(rng.random(normal.shape) < 0.3, normal, -np.inf)
    few[..., 0] = 0
    return normal, np.round(normal) + 0.0, np.zeros_like(normal), few  # -0 is below 0


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("vocab", [40, 300, 5003])
def test_filters_are_the_literal_ones(vocab):
    """Draws are those of the filtered logits, too, however they are found."""
    position = jnp.arange(4, dtype=jnp.int32)[None] + 90
    noise = np.asarray(noise_of(3, position, vocab))
    # Of many probabilities a sum in another order may fall on the other side of top_p.
    few = [filters for filters in FILTERS if vocab < 1000 or filters[1] == 1]
    for logits in rows(vocab):
        for filters in few:
            sampling = Sampling(1.0, *filters)
            expected = np.array([[literal_filter(sampling, node) for node in logits[0]]])
            np.testing.assert_array_equal(filter_logits(sampling, logits), expected, str(filters))
            tokens = draw(
                sampling, jnp.asarray(logits), jnp.uint32(3), position, levels_of(position)
            )
            filtered = filter_logits(sampling, logits - logits.max(-1, keepdims=True))
            np.testing.assert_array_equal(tokens, np.argmax(filtered + noise, -1), str(filters))


@pytest.mark.parametrize("temperature", [0, 1e-7, 1e-38, 5e-324])
def test_a_very_small_temperature_draws_the_first_of_the_most_likely(temperature):
    logits = np.random.default_rng(0).normal(0, 5, (2, 20, VOCAB)).astype(np.float32)
    position = jnp.arange(40, dtype=jnp.int32).reshape(2, 20)
    for values in (logits, 1e30 * logits, *([np.round(logits) + 0.0] if temperature == 0 else [])):
        draws = draw(
            Sampling(temperature), jnp.asarray(values), jnp.uint32(0), position, levels_of(position)
        )
        np.testing.assert_array_equal(draws, np.argmax(values, axis=-1))


@pytest.mark.parametrize("core", [False, pytest.param(True, marks=native)])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, 2, 0.5, 0.5)])
def test_nan_draws_no_token(sampling, core):
    logits = jnp.asarray([[[0, 1, jnp.nan, 0], [0, 1, 0, 0], [0, jnp.inf, 0, 0]]], jnp.float32)
    zero = jnp.zeros((1, 3), jnp.int32)
    arguments = sampling.values(), logits, jnp.uint32(0), zero, zero
    draws = np.asarray(draw_jitted(*arguments, core=core))[0]
    assert draws[0] == -1
    assert draws[1] >= 0


def test_noise_is_the_same_under_every_generator():
    """And in trees of any size, which another generator's numbers would depend on."""
    position = jnp.asarray([[3, 4, 5], [7, 3, 1]], jnp.int32)
    expected = noise_of(9, position, VOCAB)
    for name in ("rbg", "unsafe_rbg"):
        with jax.default_prng_impl(name):
            np.testing.assert_array_equal(noise_of(9, position, VOCAB), expected)
            single = noise_of(9, position[:1, 1:2], VOCAB)
            np.testing.assert_array_equal(single[0, 0], expected[0, 1])


@pytest.mark.parametrize("over", ["positions", "seeds", "rows"])
def test_frequencies_are_the_probabilities(over):
    sampling = Sampling(1.3, 6, 0.9)
    n, logits = 4096, np.random.default_rng(1).normal(size=8).astype(np.float32)
    index, zero = jnp.arange(n, dtype=jnp.int32), jnp.zeros((1, 1), jnp.int32)
    if over == "positions":
        noise = noise_of(0, index[None], 8)[0]
    elif over == "rows":
        noise = noise_of(0, jnp.zeros((n, 1), jnp.int32), 8)[:, 0]
    else:
        noise = jax.vmap(lambda seed: noise_of(seed, zero, 8))(index.astype(jnp.uint32))[:, 0, 0]
    scaled = filter_logits(sampling, jnp.asarray(logits / np.float32(1.3))[None, None])[0]
    probability = softmax(literal_filter(sampling, logits / np.float32(1.3)))
    kept = probability > 0
    counts = np.bincount(np.argmax(scaled + noise, axis=-1), minlength=8)
    assert not counts[~kept].any()
    assert chisquare(counts[kept], n * probability[kept]).pvalue > 1e-3


def test_a_node_draws_what_it_would_draw_alone():
    sampling, rng = Sampling(0.8, 20, 0.9), np.random.default_rng(2)
    logits = jnp.asarray(rng.normal(size=(3, 6, VOCAB)), jnp.float32)
    levels = jnp.asarray(rng.integers(0, 4, (3, 6)), jnp.int32)
    position = jnp.asarray([[5], [90], [0]], jnp.int32) + jnp.arange(4)[None]
    together = draw(sampling, logits, jnp.uint32(7), position, levels)
    assert together.dtype == jnp.int32
    zero = jnp.zeros((3, 1), jnp.int32)
    for i in range(levels.shape[1]):
        at = jnp.take_along_axis(position, levels[:, i : i + 1], axis=1)
        alone = draw(sampling, logits[:, i : i + 1], jnp.uint32(7), at, zero)
        np.testing.assert_array_equal(alone[:, 0], together[:, i])
    first = draw(sampling, logits[:1], jnp.uint32(7), position[:1], levels[:1])
    np.testing.assert_array_equal(first, together[:1])


@native
@pytest.mark.parametrize("scale", [1.0, 4.0, 20.0])
def test_the_core_draws_as_jax_does(scale):
    """Each sequence in its own way, some greedily, of a vocabulary of many blocks."""
    rng = np.random.default_rng(int(scale))
    batch, nodes, vocab = 48, 5, 2500
    options = [(0.0, 0.4, 1.0, 3.0), (0, 1, 40, 129, 2000), (0.3, 0.9, np.inf), (0.0, 0.05, 1.0)]
    drawn = (rng.choice(each, batch) for each in options)
    temperature, top_k, top_p, min_p = (jnp.asarray(x, jnp.float32) for x in drawn)
    sampling = SamplingValues(temperature, top_k.astype(jnp.int32), top_p, min_p)
    logits = jnp.asarray(scale * rng.normal(size=(batch, nodes, vocab)), jnp.float32)
    logits = logits.at[:, 1].set(jnp.round(logits[:, 1])).at[3, 2, 7].set(jnp.nan)
    levels = jnp.asarray(rng.integers(0, 3, (batch, nodes)), jnp.int32)
    position = jnp.asarray(rng.integers(0, 9999, (batch, 1)), jnp.int32) + jnp.arange(3)[None]
    for values in (sampling, SamplingValues(temperature)):
        arguments = values, logits, jnp.uint32(1), position, levels
        by_core = draw_jitted(*arguments, core=True)
        np.testing.assert_array_equal(by_core, draw_jitted(*arguments))
        assert by_core[3, 2] == -1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-1, np.inf, np.nan]),
        ("top_k", [-1]),
        ("top_p", [0, 1.5, np.nan]),
        ("min_p", [-0.1, 1.1]),
        ("repetition_penalty", [0, np.inf]),
    ],
)
def test_wrong_settings_are_named(name, values):
    for value in values:
        with pytest.raises(UserError, match=f"^{name} must"):
            Sampling(**{name: value})


# The largest of a row.


@pytest.fixture(params=["on this platform", "as on accelerators"])
def way(request, monkeypatch):
    if request.param != "on this platform":
        monkeypatch.setattr(vocabulary, "available", lambda: False)


@pytest.mark.parametrize(
    ("size", "k"),
    [(5, 5), (9, 0), (257, 1), (1000, 3), (4096, 25), (4096, 65), (5003, 10), (32_000, 25)],
)
def test_the_same_entries(size, k, way):
    rng = np.random.default_rng(size)
    normal = rng.normal(size=(2, 3, size)).astype(np.float32)
    rows = {
        "different": normal,
        "a few values": np.round(normal) + 0.0,  # without -0, which the C++ core takes for 0
        "one value": np.zeros_like(normal),
        "fewer finite ones than k": np.where(rng.random(normal.shape) < 3 / size, normal, -np.inf),
    }
    ours = jax.jit(lambda *arguments: exact_top_k(*arguments), static_argnums=1)
    for name, x in rows.items():
        for mine, theirs in zip(ours(x, k), jax.lax.top_k(x, k), strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=name)
            assert mine.dtype == theirs.dtype
        mapped = jax.vmap(functools.partial(exact_top_k, k=k))(x)
        np.testing.assert_array_equal(mapped[1], ours(x, k)[1])


def test_no_row_is_sorted(monkeypatch):
    monkeypatch.setattr(vocabulary, "available", lambda: False)
    x = jax.ShapeDtypeStruct((1, 8, 151_936), np.float32)
    steps = jax.make_jaxpr(lambda x: exact_top_k(x, 25))(x).jaxpr.eqns
    sorts = [step for step in steps if step.primitive.name == "top_k"]
    assert len(sorts) == 2
    assert max(step.invars[0].aval.shape[-1] for step in sorts) < 4000


def test_the_first_of_the_largest_and_nan(way):
    inf, nan = np.inf, np.nan
    x = [[1, 2, 2], [-inf, -inf, -inf], [0, nan, inf], [nan, nan, nan], [inf, 1, inf], [-1, -2, -1]]
    assert vocabulary.WHOLE.argmax(jnp.asarray(x)).tolist() == [1, 0, -1, -1, 0, 0]
