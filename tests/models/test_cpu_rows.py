"""Rows in the C++ core: as plain JAX, bit for bit."""

import jax
import jax.numpy as jnp
import pytest
from needs import native

from dart_jax.models.cpu import append_rows

pytestmark = native


def test_rows_are_kept_in_place():
    old, new = ((((jnp.zeros((2, 3, rows, 8)),) * 2),) * 3 for rows in (20, 9))
    index, length = jnp.zeros((2, 4), jnp.int32), jnp.zeros(2, jnp.int32)
    keep = jax.jit(append_rows, donate_argnums=0)
    compiled = keep.lower(old, new, index, length).compile().as_text()
    assert "copy(" not in compiled.split("ENTRY")[1]


def test_a_cache_of_another_shape_is_refused():
    old, new = (((jnp.zeros((1, 2, 5, h)),) * 2,) for h in (8, 4))
    with pytest.raises(jax.errors.JaxRuntimeError, match="different shapes"):
        append_rows(old, new, jnp.zeros((1, 1), jnp.int32), jnp.zeros(1, jnp.int32))
