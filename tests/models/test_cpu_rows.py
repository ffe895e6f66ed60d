"""What the C++ core does to rows: as plain JAX, bit for bit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax import _core
from dart_jax.models import cache
from dart_jax.models.cpu.foreign import available
from dart_jax.models.cpu.rows import append_rows, largest, take_rows

pytestmark = pytest.mark.skipif(
    not _core.cpu_ffi_handlers or not available(), reason="built without jaxlib's headers"
)
DTYPES = (jnp.float32, jnp.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0,)])
def test_rows_of_a_table(shape, dtype):
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(17, 6)), dtype)
    ids = jnp.asarray(rng.integers(0, 17, shape), jnp.int32)
    np.testing.assert_array_equal(jax.jit(take_rows)(table, ids), table[ids])


def test_ids_beyond_the_table_are_those_of_its_ends():
    table = jnp.arange(12.0).reshape(4, 3)
    got = take_rows(table, jnp.asarray([-1, 4, 2**31 - 1], jnp.int32))
    np.testing.assert_array_equal(got, table[jnp.asarray([0, 3, 3])])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kept", "lengths"), [(1, [0, 3]), (4, [7, 2]), (6, [14, 9])])
def test_accepted_rows(kept, lengths, dtype):
    """In place, in every layer; at the end of the capacity, too."""
    rng = np.random.default_rng(kept)

    def layers(rows):
        def normal():
            return jnp.asarray(rng.normal(size=(2, 3, rows, 8)), dtype)

        return tuple((normal(), normal()) for _ in range(3))

    old, new = layers(20), layers(9)
    index = jnp.asarray(rng.integers(0, 9, (2, kept)), jnp.int32)
    length = jnp.asarray(lengths, jnp.int32)
    expected = cache.append(old, new, index, length)
    written = jax.jit(append_rows, donate_argnums=0)
    copied = jax.tree.map(jnp.copy, old)
    for got, rows in zip(
        jax.tree.leaves(written(copied, new, index, length)),
        jax.tree.leaves(expected),
        strict=True,
    ):
        np.testing.assert_array_equal(got, rows)
    compiled = written.lower(old, new, index, length).compile().as_text()
    assert "copy(" not in compiled.split("ENTRY")[1]


@pytest.mark.parametrize("k", [0, 1, 7])
def test_the_largest(k):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 50)), jnp.float32)
    x = x.at[0, 0, 11].set(jnp.nan)
    for got, expected in zip(jax.jit(partial(largest, k=k))(x), jax.lax.top_k(x, k), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_cache_of_another_shape_is_refused():
    old, new = (((jnp.zeros((1, 2, 5, h)),) * 2,) for h in (8, 4))
    with pytest.raises(jax.errors.JaxRuntimeError, match="different shapes"):
        append_rows(old, new, jnp.zeros((1, 1), jnp.int32), jnp.zeros(1, jnp.int32))
