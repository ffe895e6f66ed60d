"""Products with weights in tiles: against float64, and the same bits however they are computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blocks import TYPES, block_size, dequantized, random_blocks
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import native

from dart_jax import _core
from dart_jax.models import cpu
from dart_jax.models.kernels import inputs
from dart_jax.models.kernels.inputs import Gated, Normed
from dart_jax.models.kernels.tiles import (
    TILE,
    Tiles,
    join,
    pack,
    pack_blocks,
    pack_exactly,
    pack_int8,
    product,
)
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.weights import WeightsForm

GROUP = 32  # inputs that share a scale, where they are rounded to 8 bits
DTYPES = (jnp.float32, jnp.bfloat16)


def random(count, d_in, d_out, seed=0, dtype=jnp.float32):
    """An input and weights that bfloat16 can hold."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(count, d_in)), rng.normal(size=(d_in, d_out))
    return jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.bfloat16).astype(dtype)


def same_bits(one, other):
    one, other = np.asarray(one), np.asarray(other)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert one.tobytes() == other.tobytes()


def same_tiles(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(same_bits, one, other)


@native
@pytest.mark.parametrize(
    ("d_out", "dtype"), [(1, jnp.float32), (32, jnp.bfloat16), (33, *DTYPES[:1])]
)
def test_packing_keeps_every_weight(dtype, d_out):
    _, w = random(1, 7, d_out, dtype=dtype)
    tiles = pack(w)
    assert tiles.shape == (7, d_out)
    assert tiles.parts[0].shape == (-(-d_out // TILE), 7, TILE)
    same_bits(tiles.transposed(), w.T.astype(jnp.float32))
    same_tiles(pack(w.T, transposed=True), tiles)
    same_tiles(pack_exactly(w.T, transposed=True), pack(w.astype(jnp.bfloat16)))


@native
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_weights_in_float16(dtype):
    """Those that bfloat16 does not hold stay in 16 bits, the smallest ones, too, and a product is
    that of float32, bit for bit."""
    x, w = random(5, 70, 50)
    w = (w + 2.0**-9).at[3].multiply(2.0**-14).astype(jnp.float16)
    tiles = pack_exactly(w.astype(dtype))
    assert tiles.types == ("F16",)
    wide = w.astype(jnp.float32)
    same_bits(tiles.transposed(), wide.T)
    same_bits(product(x, tiles), product(x, pack(wide)))
    assert pack_exactly(wide.at[0, 0].add(2.0**-20)).types == ("F32",)


@native
@pytest.mark.parametrize(
    ("d_in", "d_out", "dtype"), [(1, 1, jnp.float32), (64, 32, jnp.bfloat16), (65, 33, jnp.float32)]
)
def test_weights_in_8_bits_are_near(dtype, d_in, d_out):
    _, w = random(1, d_in, d_out, dtype=dtype)
    w = w.at[:, 0].set(0)
    tiles = pack_int8(w)
    assert tiles.types == ("Q8_0",)
    near = tiles.transposed().T
    # Half of a step, of which the largest of a group has 127; steps are rounded to float16.
    w = np.asarray(w, np.float32)
    groups = -(-d_in // GROUP)
    padded = np.pad(w, ((0, groups * GROUP - d_in), (0, 0))).reshape(groups, GROUP, d_out)
    step = np.repeat(np.abs(padded).max(1, keepdims=True) / 127, GROUP, 1).reshape(-1, d_out)
    assert (np.abs(near - w) <= 0.57 * step[:d_in] + 127 * 2.0**-25).all()
    same_tiles(pack_int8(jnp.asarray(w.T), transposed=True), tiles)
    # Weights that are rounded stay as they are.
    again = pack_int8(near).transposed().T
    np.testing.assert_allclose(again, near, rtol=1e-3, atol=127 * 2.0**-24)


def rounded(x):
    """Inputs [count, in] as products with weights in blocks read them, rounded to 8 bits."""
    count, d_in = x.shape
    groups = np.pad(np.asarray(x), ((0, 0), (0, -d_in % GROUP))).reshape(count, -1, GROUP)
    largest = np.abs(groups).max(-1, keepdims=True)
    values = np.round(groups * np.where(largest > 0, 127 / np.maximum(largest, 1e-30), 0))
    return (values * (largest / 127)).reshape(count, -1)[:, :d_in].astype(np.float64)


@native
@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(TYPES),
    st.sampled_from([1, 2, 9, 70]),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 33, 64]),
)
def test_products_with_blocks(type, count, blocks, d_out):
    """The weights are those that GGUF's package finds, and a product is theirs up to rounding, in
    float64; a row's bits do not depend on the others."""
    rng = np.random.default_rng(count)
    d_in = blocks * block_size(type)[0]
    stored = random_blocks(rng, type, d_out, d_in)
    tiles, not_finite = pack_blocks(type, stored)
    weights = dequantized(type, stored)
    assert (tiles.shape, tiles.types, not_finite) == ((d_in, d_out), (type,), 0)
    np.testing.assert_array_equal(tiles.transposed(), weights)
    x = jnp.asarray(rng.normal(size=(count, d_in)), jnp.float32)
    y = product(x, tiles)
    exact = rounded(x) @ np.float64(weights).T
    size = np.abs(rounded(x)) @ np.abs(np.float64(weights)).T
    # With a minimum, integers and minima are summed apart.
    assert (np.abs(y - exact) <= 1e-5 * size + 1e-6).all()
    same_bits(product(x[-1:], tiles), y[-1:])
    same_bits(product(x[: count // 2], tiles), y[: count // 2])
    bad = product(x.at[0, 0].set(jnp.inf), tiles)
    assert jnp.isnan(bad[0]).all()
    same_bits(bad[1:], y[1:])


@native
@pytest.mark.parametrize("type", TYPES)
def test_weights_that_are_not_finite_are_counted(type):
    weights, size = block_size(type)
    stored = random_blocks(np.random.default_rng(0), type, 3, 2 * weights)
    stored[1, size:][208 if type == "Q6_K" else 0 :][:2] = np.float16([np.nan]).view(np.uint8)
    _, not_finite = pack_blocks(type, stored)
    assert not_finite == (~np.isfinite(dequantized(type, stored))).sum() == weights


@native
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_table(dtype):
    """Ids beyond the table are those of its ends."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(17, 6)), dtype)
    ids = np.array([[0, 16, 5], [-1, 17, 2**31 - 1]], np.int32)
    expected = table[jnp.asarray(ids.clip(0, 16))].astype(jnp.float32)
    same_bits(jax.jit(Tiles.rows)(pack(table, transposed=True), ids), expected)


@native
def test_joined_weights():
    """Parts of several types, whose outputs follow each other; of one type they are one part if
    their tiles are full."""
    x, w = random(5, 256, 160)
    parts = [pack_blocks(t, random_blocks(np.random.default_rng(3), t, 33, 256))[0] for t in TYPES]
    floats = [pack(part) for part in jnp.split(w, [64, 96, 136], axis=1)]
    whole = join(parts + floats)
    assert whole.outs[-2:] == (136, 24)
    apart = jnp.concatenate([product(x, part) for part in [*parts, pack(w)]], axis=1)
    bias = jnp.arange(whole.shape[1], dtype=jnp.float32)
    same_bits(product(x, whole, bias), apart + bias[None])


@native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rows", "norm", "offset", "silu", "gelu_pytorch_tanh"])
def test_operations_before_and_after_the_product(kind, dtype):
    """Norms and gates before, bias and residual after; computed apart from it, as layers do."""
    x, w = random(6, 80, 50)
    more, bias = random(6, 50, 1, seed=1)
    scale, _ = random(1, 80, 1, seed=2)
    arrays = x.reshape(2, 3, 80), scale[0], bias[:, 0], more.reshape(2, 3, 50)
    x, scale, bias, more = (array.astype(dtype) for array in arrays)
    forms = {"rows": x, "norm": Normed(x, scale, 1e-6, None), "offset": Normed(x, scale, 1e-6, 1.0)}
    given = forms.get(kind, Gated(x, kind))
    plain = inputs.computed(given)
    w = w[: plain.shape[-1]]
    y = jax.jit(lambda tiles, bias, more: product(given, tiles, bias, more))(pack(w), bias, more)
    assert (y.shape, y.dtype) == ((2, 3, 50), dtype)
    expected = np.float64(plain) @ np.float64(w) + np.float64(bias) + np.float64(more)
    tolerance = 2e-5 if dtype == jnp.float32 else 0.02  # of bfloat16, rounded thrice
    np.testing.assert_allclose(np.float64(y), expected, rtol=tolerance, atol=10 * tolerance)


@native
def test_weights_of_another_shape_are_refused():
    x, w = random(2, 64, 50)
    floats, blocks = pack(w), pack_int8(w)
    for tiles in (
        dataclasses.replace(floats, outs=(65,)),
        dataclasses.replace(floats, types=("BF16",)),
        dataclasses.replace(blocks, parts=(blocks.parts[0][:, :-1],)),
        dataclasses.replace(blocks, types=("Q6_K",)),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match="weights of another shape"):
            product(x, tiles).block_until_ready()


def test_without_the_handler(monkeypatch, caplog):
    monkeypatch.setattr(_core, "cpu_ffi_handlers", {})
    monkeypatch.setattr(cpu, "_registered", None)
    assert not cpu.available()
    assert Execution.of_cpu() == Execution(weights=WeightsForm(fused=True))
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once
    caplog.clear()
    x, w = random(1, 2, 3)
    with pytest.raises(RuntimeError, match=r"need the C\+\+ core"):
        product(x, pack(w))
