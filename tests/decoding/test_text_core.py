"""The bindings of the C++ core's text search: on an example, and what they refuse. Its own tests,
in native/tests, check the formula at random."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import native

from dart_jax import _core

TEXT = np.array([1, 2, 1, 3, 1], np.int32)
TRUST = np.array([0.5, 0.6, *[0.9] * 14], np.float32)


def packed(nodes):
    """A packed tree of the root 1 and of (path, probability), the most likely first."""
    paths = [(), *(path for path, _ in nodes)]
    scores = np.log(np.array([1, *(p for _, p in nodes)], np.float32))
    columns = [
        (path[-1] if path else 1, paths.index(path[:-1]) if path else 0, len(path), score)
        for path, score in zip(paths, scores.view(np.int32), strict=True)
    ]
    return np.array(columns, np.int32).T.copy()


def check(out, nodes):
    want = packed(nodes)
    np.testing.assert_array_equal(out[:3], want[:3])
    np.testing.assert_allclose(out[3].view(np.float32), want[3].view(np.float32), atol=1e-5)


BASE = packed([((3,), 0.4), ((7,), 0.36), ((3, 8), 0.4 * 0.5)])


def test_text_alone():
    out = np.zeros((4, 5), np.int32)
    _core.text_tree(TEXT, out, depth=2, trust=TRUST)
    check(out, [((3,), 0.25), ((2,), 0.25), ((3, 1), 0.25 * 0.6), ((2, 1), 0.25 * 0.6)])


def test_text_and_base():
    out = np.zeros((4, 7), np.int32)
    _core.text_tree(TEXT, out, depth=2, trust=TRUST, base=BASE)
    three = 0.5 * 0.4 + 0.5 * 0.5
    check(
        out,
        [
            ((3,), three),
            ((3, 1), three * 0.6),
            ((2,), 0.5 * 0.5),
            ((7,), 0.5 * 0.36),
            ((2, 1), 0.5 * 0.5 * 0.6),
            ((3, 8), three * 0.4 * 0.5),
        ],
    )


def test_base_alone():
    out = np.zeros((4, 3), np.int32)
    _core.text_tree(np.array([2, -1, 1], np.int32), out, depth=2, trust=TRUST, base=BASE)
    np.testing.assert_array_equal(out, BASE[:, :3])


@native
def test_in_programs():
    """Shared tokens are at the end, and at most those that are not the text's own."""
    texts = np.array([[1, 2, 1, 3, 1, 5, 1, 8], [1, 2, 1, 3, 1, 5, 1, 8]], np.int32)
    shape = jax.ShapeDtypeStruct((2, 4, 5), jnp.int32)
    call = jax.jit(lambda *x: jax.ffi.ffi_call("dart_text_trees", shape)(*x, depth=np.int64(1)))
    lengths, shared = np.array([5, 5], np.int32), np.array([2, 99], np.int32)
    none = np.zeros(0, np.int32)
    out = np.asarray(call(texts, lengths, shared, none, TRUST, none))
    third = 0.5 / 3
    for tree in out:
        check(tree[:, :4], [((3,), third), ((2,), third), ((8,), third)])
    with_base = call(texts, lengths, np.zeros(2, np.int32), none, TRUST, np.stack([BASE, BASE]))
    three = 0.5 * 0.4 + 0.5 * 0.5
    for tree in np.asarray(with_base):
        check(tree[:, :4], [((3,), three), ((2,), 0.25), ((7,), 0.5 * 0.36)])
    with pytest.raises(jax.errors.JaxRuntimeError, match="other shapes"):
        call(texts, lengths, shared, none, TRUST, BASE)


def test_noise_chooses():
    out, first = np.zeros((4, 2), np.int32), set()
    for key in range(20):
        draws = np.array([key, 0, 5, np.float32(1).view(np.int32)], np.int32)
        _core.text_tree(TEXT, out, depth=2, trust=TRUST, draws=draws)
        first.add(int(out[0, 1]))
    assert first == {2, 3}


def test_counts():
    counts = np.zeros((16, 2), np.uint32)
    _core.count_followers(np.array([1, 2, 3, 1, 2, 3, 1, 9], np.int32), 2, counts)
    # After 1, 1 2, 1 2 3 and 1 2 3 1, of which the last is wrong.
    np.testing.assert_array_equal(counts[:5], [[1, 1], [1, 1], [1, 1], [1, 0], [0, 0]])
    assert not counts[5:].any()


WRONG = {
    "tokens": np.zeros((1, 5), np.int32),
    "out": np.zeros((3, 5), np.int32),
    "trust": np.zeros(15, np.float32),
    "base": np.zeros((4, 0), np.int32),
    "draws": np.zeros(3, np.int32),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays(name):
    right = {"tokens": TEXT, "out": np.zeros((4, 5), np.int32), "trust": TRUST}
    for wrong in (WRONG[name], np.zeros((4, 5), np.float64)):
        with pytest.raises(ValueError, match=name):
            _core.text_tree(**{**right, name: wrong}, depth=2)


def test_wrong_counts():
    counts = np.zeros((16, 2), np.uint32)
    wrongs: list[Any] = [counts[:15], counts.astype(np.int32), counts.T]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="counts"):
            _core.count_followers(TEXT, 0, wrong)
