"""Rows in the C++ core: as plain JAX, bit for bit."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from needs import native

from dart_jax.models.attention.compaction import append
from dart_jax.models.cpu import only_rows

pytestmark = native
append_rows = partial(append, kernel="native")


def test_rows_are_kept_in_place():
    old, new = ((((jnp.zeros((2, 3, rows, 8)),) * 2),) * 3 for rows in (20, 9))
    index, length = jnp.zeros((2, 4), jnp.int32), jnp.zeros(2, jnp.int32)
    keep = jax.jit(append_rows, donate_argnums=0)
    compiled = keep.lower(old, new, index, length).compile().as_text()
    assert "copy(" not in compiled.split("ENTRY")[1]


@pytest.mark.parametrize("used", [0, 1, 3, 4, 9])
def test_of_rows_that_are_not_computed_none_is_kept(used):
    """What is there stays: it may be another text's."""
    old, new = (((jnp.full((1, 2, rows, 8), rows, jnp.float32),) * 2,) for rows in (7, 4))
    index = jnp.arange(4, dtype=jnp.int32)[None]
    with only_rows(jnp.int32(used)):
        kept = append_rows(old, new, index, jnp.ones(1, jnp.int32))
    keys, values = jax.tree.map(lambda x: x[0, 0, :, 0].tolist(), kept)[0]
    assert keys == values == [7, *[4] * min(used, 4), *[7] * (6 - min(used, 4))]


def test_a_cache_of_another_shape_is_refused():
    old, new = (((jnp.zeros((1, 2, 5, h)),) * 2,) for h in (8, 4))
    with pytest.raises(jax.errors.JaxRuntimeError, match="different shapes"):
        append_rows(old, new, jnp.zeros((1, 1), jnp.int32), jnp.zeros(1, jnp.int32))
