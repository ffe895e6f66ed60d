"""Products with weights in tiles: against float64, and the same bits however they are computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import native

from dart_jax import _core
from dart_jax.models import cpu, inputs
from dart_jax.models.cpu import (
    GROUP,
    TILE,
    pack,
    pack_exactly,
    pack_int8,
    product,
    round_groups,
    unpack,
)
from dart_jax.models.inputs import Gated, Normed
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.weights import WeightsForm

DTYPES = (jnp.float32, jnp.bfloat16)
jitted = jax.jit(product, static_argnums=2)


def random(count, d_in, d_out, seed=0, dtype=jnp.float32):
    """An input and weights that bfloat16 can hold."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(count, d_in)), rng.normal(size=(d_in, d_out))
    return jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.bfloat16).astype(dtype)


def same_bits(one, other):
    one, other = np.asarray(one), np.asarray(other)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("d_out", "dtype"), [(1, jnp.float32), (32, jnp.bfloat16), (33, *DTYPES[:1])]
)
def test_packing_keeps_every_weight(dtype, d_out):
    _, w = random(1, 7, d_out, dtype=dtype)
    tiles = pack(w)
    assert tiles.shape == (-(-d_out // TILE), 7, TILE)
    same_bits(unpack(tiles, 7, d_out), w)
    same_bits(pack(w.T, transposed=True), tiles)
    same_bits(pack_exactly(w.T, transposed=True), pack(w.astype(jnp.bfloat16)))


@pytest.mark.parametrize(
    ("d_in", "d_out", "dtype"), [(1, 1, jnp.float32), (64, 32, jnp.bfloat16), (65, 33, jnp.float32)]
)
def test_weights_in_8_bits_are_near(dtype, d_in, d_out):
    _, w = random(1, d_in, d_out, dtype=dtype)
    w = w.at[:, 0].set(0)
    tiles = pack_int8(w)
    groups = -(-d_in // GROUP)
    assert tiles.shape == (-(-d_out // TILE), groups, GROUP * TILE + 4 * TILE)
    near = unpack(tiles, d_in, d_out)
    assert near.dtype == jnp.float32
    # Half of a step, of which the largest of a group has 127.
    w = np.asarray(w, np.float32)
    padded = np.pad(w, ((0, groups * GROUP - d_in), (0, 0))).reshape(groups, GROUP, d_out)
    step = np.repeat(np.abs(padded).max(1, keepdims=True) / 127, GROUP, 1).reshape(-1, d_out)
    assert (np.abs(near - w) <= 0.501 * step[:d_in]).all()
    same_bits(pack_int8(jnp.asarray(w.T), transposed=True), tiles)
    # Weights that are rounded stay as they are.
    np.testing.assert_allclose(unpack(pack_int8(near), d_in, d_out), near, rtol=1e-6)


@native
@pytest.mark.parametrize(("count", "d_in", "d_out"), [(1, 64, 32), (9, 100, 33), (30, 1, 1)])
def test_8_bits_are_exact_after_rounding(count, d_in, d_out):
    x, w = random(count, d_in, d_out)
    tiles = pack_int8(w)
    padded = jnp.pad(x, ((0, 0), (0, -d_in % GROUP))).reshape(count, -1, GROUP)
    values, scales = round_groups(padded, 2)
    near = (values.astype(jnp.float32) * scales[..., None]).reshape(count, -1)[:, :d_in]
    exact = np.float64(near) @ np.float64(unpack(tiles, d_in, d_out))
    np.testing.assert_allclose(jitted(x, tiles, d_out), exact, rtol=1e-5, atol=1e-5)
    bad = jitted(x.at[0, 0].set(jnp.inf), tiles, d_out)
    assert jnp.isnan(bad[0]).all()
    assert jnp.isfinite(bad[1:]).all()


def read(kind, x, scale, eps=1e-6):
    """Inputs of a linear layer, by the operation before the product."""
    if kind == "rows":
        return x
    if kind in ("norm", "offset"):
        return Normed(x, scale, eps, 1.0 if kind == "offset" else None)
    return Gated(x, kind)


KINDS = ("rows", "norm", "offset", "silu", "gelu_pytorch_tanh")


@native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_operations_before_and_after_the_product(kind, dtype):
    """Norms and gates before, bias and residual after; computed apart from it, as layers do."""
    x, w = random(6, 80, 50)
    more, bias = random(6, 50, 1, seed=1)
    scale, _ = random(1, 80, 1, seed=2)
    arrays = x.reshape(2, 3, 80), scale[0], bias[:, 0], more.reshape(2, 3, 50)
    x, scale, bias, more = (array.astype(dtype) for array in arrays)
    given = read(kind, x, scale)
    plain = inputs.computed(given)
    w = w[: plain.shape[-1]]
    y = jax.jit(lambda tiles, bias, more: product(given, tiles, 50, bias, more))(
        pack(w), bias, more
    )
    assert (y.shape, y.dtype) == ((2, 3, 50), dtype)
    expected = np.float64(plain) @ np.float64(w) + np.float64(bias) + np.float64(more)
    tolerance = 2e-5 if dtype == jnp.float32 else 0.02  # of bfloat16, rounded thrice
    np.testing.assert_allclose(np.float64(y), expected, rtol=tolerance, atol=10 * tolerance)


@native
def test_weights_of_another_shape_are_refused():
    x, w = random(2, 40, 50)
    for tiles, d_out in [
        (pack(w), 65),
        (pack(w), 32),
        (pack(w)[:, 1:], 50),
        (pack_int8(w)[..., :-1], 50),
        (pack_int8(w)[:, :0], 50),
    ]:
        with pytest.raises(jax.errors.JaxRuntimeError, match="weights of another shape"):
            product(x, tiles, d_out).block_until_ready()
    with pytest.raises(jax.errors.JaxRuntimeError, match="must be float32, bfloat16 or int8"):
        product(x, pack(w).astype(jnp.float16), 50).block_until_ready()


def test_without_the_handler(monkeypatch, caplog):
    monkeypatch.setattr(_core, "cpu_ffi_handlers", {})
    monkeypatch.setattr(cpu, "_registered", None)
    assert not cpu.available()
    assert Execution.of_cpu() == Execution(weights=WeightsForm(fused=True))
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once
    caplog.clear()
    x, w = random(1, 2, 3)
    with pytest.raises(RuntimeError, match=r"need the C\+\+ core"):
        product(x, pack(w), 3)
