"""The n-gram model against a brute-force count."""

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_corpora import (
    brute_force_counts,
    brute_force_windows,
    build,
    corpora,
    counts_of,
    forget,
    ngram_counts,
    orders,
    random_documents,
    seeds,
)

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.ngram import NgramModel, WindowLayout


@pytest.fixture(scope="module")
def directory():
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def brute_force_probability(counts, order, context, candidate):
    """By the longest context that the candidate was seen after."""
    for n in range(min(order - 1, len(context)), 0, -1):
        suffix = tuple(context[len(context) - n :])
        count = counts.get((*suffix, candidate), 0)
        if count:
            return np.float32(count) * (np.float32(1) / np.float32(counts[suffix]))
    return np.float32(0)


# Counting


@given(corpora(), orders)
def test_counts_are_those_of_brute_force(corpus, order):
    documents, vocab_size = corpus
    model = NgramModel.count(documents, order, vocab_size=vocab_size, fingerprint=bytes(range(32)))
    counts = brute_force_counts(documents, order)
    assert counts_of(model) == counts
    sizes = [sum(len(gram) == n for gram in counts) for n in range(1, order + 1)]
    assert model.sizes == tuple(sizes)
    assert model.order == order
    assert model.vocab_size == vocab_size
    assert model.fingerprint == bytes(range(32))
    assert model.exact
    header = dict(model.header)
    assert header.pop("list_bytes") + header.pop("unigram_bytes") + 272 == len(model.file)
    assert header == {
        "version": 1,
        "order": order,
        "precision": 0,
        "vocab_size": vocab_size,
        "tokens": sum(map(len, documents)),
        "ngrams": sizes,
        "dropped": [0] * order,
        "min_count": [0] * order,
        "fingerprint": bytes(range(32)),
    }


@given(corpora(), orders, seeds, st.integers(0, 8))
def test_what_follows_a_context_is_as_of_brute_force(corpus, order, seed, length):
    documents, vocab_size = corpus
    model = NgramModel.count(documents, order, vocab_size=vocab_size)
    counts = brute_force_counts(documents, order)
    rng = np.random.default_rng(seed)
    for document in [*documents, []]:
        # A span of a document, or random tokens; some are outside the vocabulary.
        begin = rng.integers(0, len(document) + 1)
        seen = document[begin : begin + length]
        for context in (seen, rng.integers(-1, vocab_size + 1, length).tolist()):
            candidates = [*rng.integers(-1, vocab_size + 1, 40).tolist(), *document[:40]]
            expected = [brute_force_probability(counts, order, context, c) for c in candidates]
            actual = model.probabilities(context, candidates)
            assert actual.dtype == np.float32
            assert actual.tolist() == expected
        suffixes = [tuple(seen[len(seen) - n :]) for n in range(1, len(seen) + 1)]
        assert [
            (f.context, f.count, [*zip(f.token.tolist(), f.counts.tolist(), strict=True)])
            for f in model.continuations(seen)
        ] == [
            (s, counts[s], sorted((g[-1], c) for g, c in counts.items() if g[:-1] == s))
            for s in suffixes[: order - 1]
        ]


@pytest.mark.parametrize(
    ("document", "options", "message"),
    [
        ([1, -1], {}, "negative"),
        ([0.5], {}, "integers"),
        ([[1, 2]], {}, "integers"),
        (np.array([2**32 + 1]), {}, "32 bits"),
        ([2**31 - 1], {}, "vocabulary size must be 1 to 16777216, got 2147483648"),
        ([1, 3], {"vocab_size": 3}, r"tokens must be in 0\.\.2"),
        ([1], {"order": 0}, "order must be 1 to 5, got 0"),
        ([1], {"order": 6}, "order must be 1 to 5, got 6"),
    ],
)
def test_count_rejects(document, options, message):
    with pytest.raises(ValueError, match=message):
        NgramModel.count([document], **options)


# Windows


def test_the_largest_vocabulary(directory):
    """Tokens of 25 bits: three words for five of them."""
    vocab_size = _core.MAX_VOCABULARY
    windows = brute_force_windows([[vocab_size - 1, 0] * 9, [7, vocab_size - 2]], 5)
    assert WindowLayout(5, vocab_size).words == 3
    model = build(directory / "large", windows, 5, vocab_size)
    assert counts_of(model) == ngram_counts(windows)
    assert model.probabilities([0], [vocab_size - 1]).tolist() == [8 / np.float32(9)]


# Building


@settings(max_examples=50)
@given(corpora(), orders, st.integers(1, 4))
def test_builder_writes_what_count_counts(directory, corpus, order, batches):
    documents, vocab_size = corpus
    windows = brute_force_windows(documents, order)
    expected = NgramModel.count(documents, order, vocab_size=vocab_size)
    for scratch in (None, tempfile.mkdtemp(dir=directory)):
        options = {"scratch": scratch, "batches": batches}
        model = build(directory / "built", windows, order, vocab_size, **options)
        assert model.file.tobytes() == expected.file.tobytes()


@given(corpora(), st.integers(2, 5), seeds, st.sampled_from([0.1, 0.5, 1.0]))
@settings(max_examples=50)
def test_counts_of_zero(directory, corpus, order, seed, share):
    """Windows that are there but not counted, as converted tries have them."""
    documents, vocab_size = corpus
    windows = forget(brute_force_windows(documents, order), seed, share)
    counts = ngram_counts(windows)
    model = build(directory / "zeros", windows, order, vocab_size)
    # A token with a count of 0 is included only if a longer n-gram contains it.
    needed = {token for gram, _ in counts.items() if len(gram) > 1 for token in gram}
    there = {g: c for g, c in counts.items() if len(g) > 1 or c or g[0] in needed}
    assert counts_of(model) == there
    assert model.header["tokens"] == sum(windows.values())
    assert sum(model.sizes) == len(there)

    rng = np.random.default_rng(seed)
    for document in documents:
        begin = rng.integers(0, len(document) + 1)
        context = document[begin : begin + 5]
        candidates = [*rng.integers(0, vocab_size, 20).tolist(), *document[:20]]
        expected = [brute_force_probability(counts, order, context, c) for c in candidates]
        assert model.probabilities(context, candidates).tolist() == expected

    again = directory / "again"
    model.lossy(again)
    assert counts_of(NgramModel.load(again)) == there
    if any(c == 0 for g, c in there.items() if len(g) > 1):
        with pytest.raises(UserError, match="already lost counts"):
            model.lossy(again, min_counts=[1] * order)


# Lossy files


def rounded(count, precision):
    """A count with so many significant bits, halves rounded up; None for all of them."""
    unit = 1 << max(0, count.bit_length() - (precision or 64))
    return (2 * count + unit) // (2 * unit) * unit


@settings(max_examples=80)
@given(corpora(), orders, st.none() | st.integers(2, 16), st.integers(0, 40), st.data())
def test_smaller_files(directory, corpus, order, precision, large, data):
    """Rare n-grams are dropped, and counts keep their leading bits; the builder writes the same
    file directly."""
    documents, vocab_size = corpus
    factor = data.draw(st.integers(1, 2**large))
    windows = {w: n * factor for w, n in brute_force_windows(documents, order).items()}
    some = st.lists(st.integers(0, 12), min_size=order, max_size=order)
    min_counts = [factor * n for n in sorted(data.draw(some))]
    options = {"min_counts": min_counts, "precision": precision}
    counts = ngram_counts(windows)
    frequent = {g: n for g, n in counts.items() if n >= min_counts[len(g) - 1]}

    exact = build(directory / "exact", windows, order, vocab_size, fingerprint=b"f" * 32)
    exact.lossy(directory / "lossy", **options)
    lossy = NgramModel.load(directory / "lossy")
    assert counts_of(lossy) == {gram: rounded(n, precision) for gram, n in frequent.items()}
    dropped = [sum(len(gram) == n for gram in counts) for n in range(1, order + 1)]
    assert lossy.header["dropped"] == [a - b for a, b in zip(dropped, lossy.sizes, strict=True)]
    assert lossy.header["min_count"] == min_counts
    assert lossy.header["precision"] == (precision or 0)
    assert lossy.header["tokens"] == sum(windows.values())
    assert lossy.fingerprint == b"f" * 32
    assert lossy.exact == (precision is None and frequent == counts)
    options["fingerprint"] = b"f" * 32
    built = build(directory / "built", windows, order, vocab_size, **options)
    assert built.file.tobytes() == lossy.file.tobytes()


def test_counts_too_large_for_the_file_are_refused(directory):
    """Fields have 57 bits."""
    fits = {(1, 2): 2**57 - 2, (2,): 1}
    assert counts_of(build(directory / "large", fits, 2, 3)) == ngram_counts(fits)
    for count in (2**57, 2**63 - 1):
        with pytest.raises(UserError, match="count"):
            build(directory / "large", {(1, 2): count, (2,): 1}, 2, 3)
    with pytest.raises(UserError, match="count"):
        build(directory / "large", {(1, 2): 2**63 - 1, (2,): 1}, 2, 3, precision=2)


# Saving and loading


@pytest.mark.parametrize("checksums", [True, False])
def test_saved_model_loads_bit_for_bit(tmp_path, checksums):
    model = NgramModel.count(random_documents(1, 300), 3)
    path = tmp_path / "beneath" / "model.dng"
    model.save(path)
    assert list(path.parent.iterdir()) == [path]
    loaded = NgramModel.load(path, checksums=checksums)
    assert loaded.file.tobytes() == model.file.tobytes()
    assert loaded.header == model.header
    assert counts_of(loaded) == counts_of(model)


def test_a_file_may_be_replaced_while_it_is_read(directory):
    path = directory / "replaced"
    NgramModel.count([[1, 2, 3]]).save(path)
    old = NgramModel.load(path)
    NgramModel.count([[4, 5] * 100], vocab_size=300).save(path)
    assert counts_of(old) == brute_force_counts([[1, 2, 3]], 3)
    assert counts_of(NgramModel.load(path)) == brute_force_counts([[4, 5] * 100], 3)


def test_other_files_are_reported(tmp_path):
    with pytest.raises(UserError, match="no n-gram model at"):
        NgramModel.load(tmp_path / "missing")
    with pytest.raises(UserError, match="cannot read n-gram model"):
        NgramModel.load(tmp_path)

    other = tmp_path / "other.dng"
    for content, message in [
        (b"", "cannot mmap an empty file"),
        (b"{}", "it is not an n-gram file"),
    ]:
        other.write_bytes(content)
        with pytest.raises(UserError, match=rf"cannot read n-gram model .*other\.dng: {message}"):
            NgramModel.load(other)


# Damage; of single bits and bytes native/tests has more.


def with_checksums(data):
    """The same bytes with checksums that fit what they say."""
    data = bytearray(data)
    for field in (216, 240):
        offset, size = struct.unpack_from("<2Q", data, field)
        part = bytes(data[offset : offset + size])
        struct.pack_into("<Q", data, field + 16, xxhash.xxh64_intdigest(part))
    struct.pack_into("<Q", data, 264, xxhash.xxh64_intdigest(bytes(data[:264])))
    return bytes(data)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (8, "<I", 2, "it has format version 2, this program reads version 1"),
        (12, "<I", 280, "its header is damaged"),
        (16, "<I", 0, "its order is not 1 to 5"),
        (20, "<I", 1, "its precision is out of range"),
        (24, "<Q", 0, "its vocabulary size is out of range"),
        (32, "<Q", 2, "its smallest count is out of range"),
        (200, "<I", 58, "its fields are too wide"),
        (208, "<Q", 2**64 - 1, "a section is not where it belongs"),
    ],
)
def test_impossible_headers_are_reported(offset, layout, value, message):
    data = bytearray(NgramModel.count([[1, 2, 3, 1, 2, 4], [30, 2]]).file.tobytes())
    struct.pack_into(layout, data, offset, value)
    with pytest.raises(ValueError, match=message):
        NgramModel(np.frombuffer(with_checksums(data), np.uint8))


def test_lists_that_are_not_in_order_are_reported():
    data = bytearray(NgramModel.count([[1, 2, 3, 1, 2, 4], [30, 2]]).file.tobytes())
    offset, size = struct.unpack_from("<2Q", data, 240)
    data[offset : offset + size] = bytes(size)  # where each token's list begins
    hostile = NgramModel(np.frombuffer(with_checksums(data), np.uint8))
    for read in (hostile.check, lambda: hostile.levels):
        with pytest.raises(ValueError, match="bits follow after its last list"):
            read()
