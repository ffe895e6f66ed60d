"""Packed rows hold every document whole and in order; training visits every row."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data.batch import Batch, positions
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


def test_positions_begin_anew_in_every_document():
    rng = np.random.default_rng(0)
    made = [
        Encoded(np.arange(n, dtype=np.int32), np.arange(n) > 0, True)
        for n in rng.integers(2, CONTEXT, 30)
    ]
    rows, _ = packed(made)
    batch = Batch(*(np.stack(arrays) for arrays in zip(*rows, strict=True)))
    filled = batch.document > 0
    np.testing.assert_array_equal(
        np.asarray(positions(batch.document))[filled], batch.tokens[filled]
    )


def test_few_holes():
    """Rows are nearly full if there are many more of them than open ones."""
    rng = np.random.default_rng(0)
    context = 512
    packer = Packer(context)
    rows = 0
    for length in np.minimum(rng.lognormal(4.5, 1, 20_000).astype(int) + 2, context):
        document = Encoded(np.zeros(length, np.int32), np.arange(length) > 0, True)
        rows += len(list(packer.add(document)))
    assert packer.statistics.tokens > 0.995 * rows * context


def batches_of(rows, batch, seed=0):
    return PackedBatches(SimpleNamespace(rows=rows, fingerprint=""), batch, seed)


@pytest.mark.parametrize(("rows", "batch"), [(10, 3), (9, 3), (1, 1), (50, 50)])
def test_every_row_once_an_epoch(rows, batch):
    batches = batches_of(rows, batch, seed=5)
    left_out = set()
    for epoch in range(40):
        steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
        taken = np.concatenate([batches.order(step) for step in steps])
        assert taken.dtype == np.int64
        assert len(set(taken.tolist())) == len(taken) == rows // batch * batch
        left_out |= set(range(rows)) - set(taken.tolist())
    assert left_out == (set(range(rows)) if rows % batch else set())


def test_the_order_is_a_function_of_seed_and_step():
    forward = [batches_of(100, 7, 1).order(step).tolist() for step in range(60)]
    again = batches_of(100, 7, 1)
    assert [again.order(step).tolist() for step in reversed(range(60))] == forward[::-1]
    assert batches_of(100, 7, 2).order(0).tolist() != forward[0]
    assert forward[0] != forward[14]
