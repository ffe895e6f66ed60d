"""The search on the host inside jitted programs, called through XLA's foreign function interface
and through Python."""

import gc
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.search import host
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.host import HostSearch
from dart_jax.ngram import NgramModel

LAYOUT = HostBuffer(positions=4, candidates=10)
VOCAB = 30
NODES = 24

foreign = pytest.mark.skipif(not host.xla_can_search(), reason="built without jaxlib's headers")


@pytest.fixture(scope="module")
def ngram():
    return NgramModel.count(np.random.default_rng(0).integers(0, 12, (40, 30)), vocab_size=VOCAB)


def pack(rows, seed=0):
    """Candidates as the device packs them; some rows are finished."""
    rng = np.random.default_rng(seed)
    shape = (rows, LAYOUT.positions, VOCAB)
    ids = rng.permuted(np.broadcast_to(np.arange(VOCAB), shape), axis=-1)[..., :10]
    context = rng.integers(0, 12, (rows, CONTEXT))
    context[::3, 0] = -1
    active = np.arange(rows) % 5 != 3
    return LAYOUT.pack(
        jnp.asarray(context, jnp.int32),
        jnp.asarray(active),
        jnp.asarray(ids, jnp.int32),
        jnp.asarray(rng.normal(0, 2, ids.shape), jnp.float32),
    )


@pytest.fixture(params=["foreign function", "python"])
def create(request):
    """Creates searches that programs call in one way; every test traces its own programs."""
    if request.param == "foreign function" and not host.xla_can_search():
        pytest.skip("built without jaxlib's headers")
    return partial(HostSearch, LAYOUT, native=request.param != "python")


def inside(prune, packed):
    """A search's trees inside a program that is traced only for it."""
    return prune.in_program(packed)


@pytest.mark.parametrize("rows", [1, 64])
def test_every_method_gives_the_trees_of_the_host(ngram, create, rows):
    prune = create(NODES, ngram=ngram, eos=(3,))
    packed = pack(rows)
    expected = prune(np.asarray(packed))
    assert np.count_nonzero(expected[:, 2]) > rows * NODES // 2
    finished = np.arange(rows) % 5 == 3
    assert not expected[finished].any()
    assert (expected[~finished, 0, 0] == np.asarray(packed)[~finished, CONTEXT - 1]).all()

    jitted = jax.jit(partial(inside, prune))
    np.testing.assert_array_equal(jitted(packed), expected)
    other = pack(rows, seed=1)  # the same program again
    np.testing.assert_array_equal(jitted(other), prune(np.asarray(other)))


def custom_calls(program):
    """The targets of custom calls in a program as StableHLO or HLO."""
    return set(re.findall(r'(?:custom_call @|custom_call_target=")(\w+)', program))


@foreign
def test_the_cpu_calls_the_search_itself(ngram):
    """Python is not called, neither before nor after XLA's own optimisation."""
    prune = HostSearch(LAYOUT, NODES, ngram=ngram)
    lowered = jax.jit(partial(inside, prune)).lower(pack(2))
    for text in (lowered.as_text(), lowered.compile().as_text()):
        assert custom_calls(text) == {"dart_search"}
    prune = HostSearch(LAYOUT, NODES, ngram=ngram, native=False)
    [through_python] = custom_calls(jax.jit(partial(inside, prune)).lower(pack(2)).as_text())
    assert "python" in through_python


def test_one_program_takes_any_search(ngram, create):
    """The search is an argument; one that is gone is refused."""
    small, large = create(NODES), create(NODES, ngram=ngram)
    packed = pack(7)
    jitted = jax.jit(lambda search, packed: search.in_program(packed))
    for prune in (small, large):
        expected = prune(np.asarray(packed))
        np.testing.assert_array_equal(jitted(prune, packed), expected)
    assert jitted._cache_size() == 1
    gone = jax.tree.map(lambda handle: handle, large)
    del prune, large
    gc.collect()
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=r"no longer exists|KeyError"
    ):
        jitted(gone, packed).block_until_ready()


def test_time_of_searches_adds_up(ngram, create):
    prune = create(NODES, ngram=ngram)
    assert prune.seconds == 0
    jitted = jax.jit(partial(inside, prune))
    packed = pack(4)
    seconds = [0.0]
    for _ in range(3):
        jitted(packed).block_until_ready()
        seconds.append(prune.seconds)
    assert seconds == sorted(set(seconds))


@foreign
def test_another_layout_is_refused_inside_a_program():
    prune = HostSearch(LAYOUT, NODES)
    narrow = pack(2)[:, :-1]
    another = "dart_search: packed candidates of another layout"
    with pytest.raises(jax.errors.JaxRuntimeError, match=another):
        jax.jit(partial(inside, prune))(narrow).block_until_ready()
    with pytest.raises(jax.errors.JaxRuntimeError, match="expected S32 but got F32"):
        jax.jit(partial(inside, prune))(pack(2).astype(jnp.float32)).block_until_ready()


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
        HostSearch(LAYOUT, **{"nodes": NODES, **option})
