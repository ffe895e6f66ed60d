"""The search on the host inside jitted programs, called through XLA's foreign function interface
and through Python."""

import gc
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import native

from dart_jax.decoding.host_buffer import CONTEXT
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.host import HostSearch
from tests.decoding.test_tree_search import Setting, random_drafts

SETTING = Setting()


@pytest.fixture(params=[pytest.param(True, marks=native), False], ids=["foreign", "python"])
def way(request):
    """Whether XLA calls the search itself."""
    return request.param


@jax.jit
def inside(search, packed):
    return search.in_program(packed)


@pytest.mark.parametrize("rows", [1, 64])
def test_one_program_takes_any_search_of_a_shape(way, rows):
    """The search is an argument; one that is gone is refused. Time adds up."""
    inside.clear_cache()
    small, large = SETTING.in_cpp(native=way, ngram=None), SETTING.in_cpp(native=way)
    for seed, search in enumerate((small, large, large)):
        packed = random_drafts(SETTING, seed, rows)
        packed[0, CONTEXT - 1] = 3
        expected, before = search(packed), search.seconds
        assert expected[0, 2].any()
        np.testing.assert_array_equal(inside(search, jnp.asarray(packed)), expected)
        assert search.seconds > before > 0
    assert inside._cache_size() == 1
    gone = jax.tree.map(lambda handle: handle, large)
    del search, large
    gc.collect()
    refused = (jax.errors.JaxRuntimeError, ValueError)
    with pytest.raises(refused, match=r"no longer exists|KeyError"):
        inside(gone, jnp.asarray(packed)).block_until_ready()


def custom_calls(program):
    """The targets of custom calls in a program as StableHLO or HLO."""
    return set(re.findall(r'(?:custom_call @|custom_call_target=")(\w+)', program))


@native
def test_the_cpu_calls_the_search_itself():
    """Python is not called, neither before nor after XLA's own optimisation."""
    packed = jnp.asarray(random_drafts(SETTING, 0))
    lowered = inside.lower(SETTING.in_cpp(), packed)
    for text in (lowered.as_text(), lowered.compile().as_text()):
        assert custom_calls(text) == {"dart_search"}
    [call] = custom_calls(inside.lower(SETTING.in_cpp(native=False), packed).as_text())
    assert "python" in call
    for other, message in (
        (packed[:, :-1], "dart_search: packed candidates of another layout"),
        (packed.astype(jnp.float32), "expected S32 but got F32"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            inside(SETTING.in_cpp(), other).block_until_ready()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"nodes": -1}, "nodes must not be negative"),
        ({"search": SearchConfig(beam=0)}, "beam must be at least 1"),
        ({"threads": -1}, "threads must be at least 1"),
    ],
)
def test_parameters_out_of_range(option, message):
    with pytest.raises(ValueError, match=message):
        HostSearch(SETTING.buffer, **{"nodes": 24, **option})
