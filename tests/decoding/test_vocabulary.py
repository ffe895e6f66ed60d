"""The top-k of long rows is that of `jax.lax.top_k`, ties included."""

from functools import partial

import jax
import numpy as np
import pytest

from dart_jax.decoding import vocabulary
from dart_jax.decoding.vocabulary import exact_top_k


@pytest.fixture
def in_blocks(monkeypatch):
    """As on accelerators."""
    monkeypatch.setattr(vocabulary, "available", lambda: False)


@pytest.fixture(params=["on this platform", "in blocks"])
def way(request):
    if request.param == "in blocks":
        request.getfixturevalue("in_blocks")


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
        mapped = jax.vmap(partial(exact_top_k, k=k))(x)
        np.testing.assert_array_equal(mapped[1], ours(x, k)[1])


def test_no_row_is_sorted(in_blocks):
    x = jax.ShapeDtypeStruct((1, 8, 151_936), np.float32)
    steps = jax.make_jaxpr(lambda x: exact_top_k(x, 25))(x).jaxpr.eqns
    sorts = [step for step in steps if step.primitive.name == "top_k"]
    assert len(sorts) == 2
    assert max(step.invars[0].aval.shape[-1] for step in sorts) < 4000
