"""The n-gram model against a brute-force count, the reference's own file, and damaged files."""

import struct
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.ngram import Level, NgramModel

GOLDEN = Path(__file__).parent / "golden"

# Few distinct tokens, so that n-grams repeat.
tokens = st.integers(0, 5)
corpora = st.lists(st.lists(tokens, max_size=12), max_size=6)
orders = st.integers(1, _core.MAX_ORDER)


def brute_force_counts(documents, order):
    """Every n-gram, as a tuple, with its count."""
    return Counter(
        tuple(document[i : i + n])
        for document in documents
        for n in range(1, order + 1)
        for i in range(len(document) - n + 1)
    )


def counts_of(model):
    """The same, read from a model's levels."""
    counts = {}
    prefixes = [()] * model.sizes[0]
    for level in model.levels:
        grams = [(*prefix, t) for prefix, t in zip(prefixes, level.token.tolist(), strict=True)]
        counts.update(zip(grams, level.count.tolist(), strict=True))
        children = np.diff(level.child_begin)  # none at the last level
        prefixes = [gram for gram, n in zip(grams, children, strict=False) for _ in range(n)]
    return counts


def brute_force_probability(counts, order, context, candidate):
    for n in range(min(order - 1, len(context)), 0, -1):
        suffix = tuple(context[-n:])
        if (*suffix, candidate) in counts:
            return np.float32(counts[*suffix, candidate]) * (
                np.float32(1) / np.float32(counts[suffix])
            )
    return np.float32(0)


def reference_counts(path):
    """The n-grams of a file of the reference implementation, and its total."""
    data = path.read_bytes()
    order, nodes = struct.unpack_from("<QQ", data)
    offset = 16
    freq, children = [], []
    for _ in range(nodes):
        _, _, count, n_children = struct.unpack_from("<iQiQ", data, offset)
        offset += 24
        freq.append(count)
        children.append(list(struct.iter_unpack("<iQ", data[offset : offset + 12 * n_children])))
        offset += 12 * n_children
    assert offset == len(data)

    counts, pending = {}, [((), 0)]
    while pending:
        gram, node = pending.pop()
        counts[gram] = freq[node]
        pending.extend(((*gram, token), child) for token, child in children[node])
    assert max(map(len, counts)) == order
    return counts, counts.pop(())


@given(corpora, orders)
def test_counts_are_those_of_brute_force(documents, order):
    model = NgramModel.count(documents, order)
    assert model.order == order
    assert counts_of(model) == brute_force_counts(documents, order)
    assert sum(model.sizes) == len(brute_force_counts(documents, order))


@pytest.mark.parametrize("name", ["qwen3-tied", "qwen3-draft-vocab"])
def test_counts_are_those_of_the_reference(name):
    model = NgramModel.count(np.load(GOLDEN / name / "ngram_corpus.npy"), order=3)
    counts, total = reference_counts(GOLDEN / name / "ngram" / "small.trie")
    assert counts_of(model) == counts
    assert model.levels[0].count.sum() == total


@given(corpora, orders, st.lists(st.integers(-1, 6), max_size=6), st.lists(st.integers(-1, 6)))
def test_probabilities_are_those_of_brute_force(documents, order, context, candidates):
    model = NgramModel.count(documents, order)
    counts = brute_force_counts(documents, order)
    expected = [brute_force_probability(counts, order, context, c) for c in candidates]
    actual = model.probabilities(context, candidates)
    assert actual.dtype == np.float32
    assert actual.tolist() == expected


@given(corpora, st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_prune_drops_rare_ngrams_and_what_extends_them(documents, min_counts):
    counts = brute_force_counts(documents, 3)
    expected = {
        gram: count
        for gram, count in counts.items()
        if all(counts[gram[:n]] >= min_counts[n - 1] for n in range(1, len(gram) + 1))
    }
    assert counts_of(NgramModel.count(documents).prune(min_counts)) == expected


def test_prune_wants_a_minimum_for_each_length():
    with pytest.raises(ValueError, match="need 3 minimum counts, got 2"):
        NgramModel.count([[1, 2, 3]]).prune([1, 2])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([1, -1], "negative"),
        ([0.5], "integers"),
        ([[1, 2]], "integers"),
        (np.array([2**32 + 1]), "32 bits"),
    ],
)
def test_count_rejects_what_are_not_tokens(document, message):
    with pytest.raises(ValueError, match=message):
        NgramModel.count([document])


def test_count_rejects_unsupported_orders():
    with pytest.raises(ValueError, match="order"):
        NgramModel.count([[1]], order=_core.MAX_ORDER + 1)


def test_core_rejects_arrays_it_cannot_read_in_place():
    token, count, _ = NgramModel.count([[1, 2]], order=1).levels[0]
    empty = np.empty(0, np.int64)
    for damaged in [
        (token.astype(np.int64), count, empty),
        (np.repeat(token, 2)[::2], count, empty),
        (token[None], count, empty),
    ]:
        with pytest.raises(ValueError, match="token must"):
            _core.NgramModel([damaged])


def test_levels_are_read_only():
    model = NgramModel.count([[1, 2]])
    with pytest.raises(ValueError, match="read-only"):
        model.levels[0].child_begin[0] = 7


@given(corpora, orders, st.sampled_from([1, 2**15, 2**31 - 1]))
def test_saved_model_loads_bit_for_bit(documents, order, largest):
    model = NgramModel.count([*documents, [largest]], order)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.ngram"
        model.save(path)
        assert list(path.parent.iterdir()) == [path]
        loaded = NgramModel.load(path)
    for ours, theirs in zip(model.levels, loaded.levels, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("ngram") / "model.ngram"
    NgramModel.count([[1, 2, 3, 1, 2, 4], [300, 2]]).save(path)
    return path


def load_bytes(data):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "damaged.ngram"
        path.write_bytes(data)
        return NgramModel.load(path)


def test_every_truncation_is_reported(saved):
    data = saved.read_bytes()
    for size in range(0, len(data), 7):
        with pytest.raises(UserError, match=r"damaged\.ngram"):
            load_bytes(data[:size])


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_bit_never_gives_another_model(saved, data):
    original = saved.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(original) - 1))
    damaged = bytearray(original)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        loaded = load_bytes(damaged)
    except UserError:
        return
    # Harmless where it only changes how the header spells the same thing.
    assert counts_of(loaded) == counts_of(NgramModel.load(saved))


def test_damaged_arrays_are_reported(saved):
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    with pytest.raises(UserError, match=r"cannot read n-gram model .*damaged\.ngram: "):
        load_bytes(data)


def test_other_files_are_reported(tmp_path):
    with pytest.raises(UserError, match="no n-gram model at"):
        NgramModel.load(tmp_path / "missing")
    with pytest.raises(UserError, match="no n-gram model at"):
        NgramModel.load(tmp_path)

    other = tmp_path / "other.safetensors"
    other.write_text("not a safetensors file")
    with pytest.raises(UserError, match="cannot read n-gram model"):
        NgramModel.load(other)
    save_file({"weight": np.zeros(3, np.float32)}, other)
    with pytest.raises(UserError, match="is not an n-gram model"):
        NgramModel.load(other)
    save_file({}, other, {"format": "dart-ngram", "version": "2"})
    with pytest.raises(UserError, match="of version 2, this program reads version 1"):
        NgramModel.load(other)


def test_hostile_levels_are_rejected():
    """The checks of the C++ core, through Python; its own tests go through them one by one."""
    good = NgramModel.count([[1, 2, 3]], order=2).levels
    beyond = good[0].child_begin.copy()
    beyond[1:] = 2**40
    with pytest.raises(ValueError, match="children do not cover"):
        NgramModel([good[0]._replace(child_begin=beyond), good[1]])
    with pytest.raises(ValueError, match="order must be 1 to 5"):
        NgramModel([])
    with pytest.raises(ValueError, match="out of order"):
        NgramModel([Level(good[0].token[::-1].copy(), good[0].count, good[0].child_begin), good[1]])
