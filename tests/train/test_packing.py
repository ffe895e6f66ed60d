"""Packed rows hold every document whole and in order; training visits every row."""

import collections
from types import SimpleNamespace

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from train.data.encoding import Encoded
from train.data.packed_dataset import PackedBatches, Packer

CONTEXT = 16


@st.composite
def documents(draw):
    """Documents whose tokens encode their document and position."""
    made = []
    for number in range(draw(st.integers(1, 40))):
        length = draw(st.integers(0, 3 * CONTEXT))
        tokens = number * 1000 + np.arange(length, dtype=np.int32) + 1
        rng = np.random.default_rng(draw(st.integers(0, 9)))
        supervised = rng.random(length) < draw(st.sampled_from([0, 0.1, 1]))
        supervised[:1] = False
        made.append(Encoded(tokens, supervised, draw(st.booleans())))
    return made


def packed(made):
    packer = Packer(CONTEXT)
    rows = [row for document in made for row in packer.add(document)]
    rows += packer.rest()
    return rows, packer.statistics


def kept(document):
    """The pieces of a document that have supervised tokens, by brute force."""
    length = len(document.tokens)
    pieces = [range(i, min(i + CONTEXT, length)) for i in range(0, length, CONTEXT)]
    pieces = pieces[:1] if document.whole else pieces
    return [piece for piece in pieces if any(document.supervised[i] for i in piece[1:])]


@given(documents())
def test_rows_hold_every_document(made):
    rows, statistics = packed(made)
    expected = {
        tuple(document.tokens[piece.start : piece.stop].tolist()): [
            False,
            *document.supervised[piece.start + 1 : piece.stop].tolist(),
        ]
        for document in made
        for piece in kept(document)
    }
    found = {}
    for row in rows:
        count = row.document.max()
        ends = np.searchsorted(row.document, np.arange(count + 1)) if 0 in row.document else None
        filled = row.document > 0
        assert (np.diff(row.document[filled]) >= 0).all()
        assert set(row.document[filled]) == set(range(1, count + 1))
        assert filled[: filled.sum()].all()  # the padding is at the end
        assert ends is None or not row.tokens[~filled].any()
        assert not row.supervised[~filled].any()
        assert row.supervised.any()
        for number in range(1, count + 1):
            chosen = row.document == number
            found[tuple(row.tokens[chosen].tolist())] = row.supervised[chosen].tolist()
    assert found == expected
    assert statistics.documents == len(expected)
    assert statistics.tokens == sum(map(len, expected))
    assert statistics.supervised == sum(map(sum, expected.values()))
    assert statistics.rows == len(rows)
    assert statistics.truncated == sum(d.whole and len(d.tokens) > CONTEXT for d in made)
    again, _ = packed(made)
    for row, same in zip(rows, again, strict=True):
        jax.tree.map(np.testing.assert_array_equal, row, same)


def test_few_holes():
    """Rows are nearly full if there are many more of them than open ones."""
    rng, context = np.random.default_rng(0), 512
    packer = Packer(context)
    for length in np.minimum(rng.lognormal(4.5, 1, 20_000).astype(int) + 2, context):
        document = Encoded(np.zeros(length, np.int32), np.arange(length) > 0, True)
        collections.deque(packer.add(document), maxlen=0)
    assert packer.statistics.tokens > 0.995 * packer.statistics.rows * context


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 3))
def test_batches_have_every_row_once_an_epoch(rows, batch, seed):
    """As many as fill whole batches, in an order that is a function of seed and step."""
    batch = min(rows, batch)

    def batches(seed):
        return PackedBatches(SimpleNamespace(rows=rows, fingerprint=""), batch, seed)

    steps = batches(seed).steps_per_epoch
    assert steps == rows // batch
    orders = [batches(seed).order(step).tolist() for step in range(3 * steps)]
    for epoch in range(3):
        taken = np.ravel(orders[epoch * steps : (epoch + 1) * steps]).tolist()
        assert len({*taken} & {*range(rows)}) == len(taken) == steps * batch
    again = batches(seed)
    assert [again.order(step).tolist() for step in reversed(range(3 * steps))] == orders[::-1]
    if rows > 20:
        others = [batches(seed + 1).order(step).tolist() for step in range(steps)]
        assert len({str(each) for each in (orders[:steps], orders[steps : 2 * steps], others)}) == 3
