"""The converter against the n-grams it was given, the reference's own files, and damaged files."""

import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_trie import encode, encode_counts

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.ngram import NgramBuilder, NgramModel, WindowLayout, reference
from dart_jax.ngram.reference import convert_reference, reference_windows

GOLDEN = Path(__file__).parents[1] / "golden"
MEMORY = 500 * 10**6


def totals_of(windows):
    """How often each n-gram begins a window."""
    totals = {}
    for window, count in windows.items():
        for n in range(1, len(window) + 1):
            totals[window[:n]] = totals.get(window[:n], 0) + count
    return totals


def read_windows(data, vocab_size):
    """The windows of a trie in the order in which they come, and its layout."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "small.trie"
        path.write_bytes(data)
        scratch = Path(directory) / "scratch"
        scratch.mkdir()
        windows = {}
        reading = reference_windows(path, vocab_size=vocab_size, memory=MEMORY, directory=scratch)
        with reading as (layout, slices):
            for words, counts in slices:
                assert words.shape == (len(counts), layout.words)
                assert (words.dtype, counts.dtype) == (np.uint64, np.int64)
                for window, count in zip(layout.unpack(words), counts.tolist(), strict=True):
                    windows[tuple(window[window >= 0].tolist())] = count
        return windows, layout


@st.composite
def tries(draw):
    """The windows of a trie of some order and vocabulary, and the file in random order."""
    order = draw(st.integers(2, 5))
    vocab_size = draw(st.sampled_from([6, 40_000, _core.MAX_VOCABULARY]))
    tokens = st.integers(0, 4) | st.just(vocab_size - 1)
    grams = st.lists(tokens, min_size=1, max_size=order).map(tuple)
    windows = draw(st.dictionaries(grams, st.integers(0, 5) | st.just(10**8), max_size=12))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return windows, order, vocab_size, encode_counts(totals_of(windows), order, rng)


@pytest.mark.long
@settings(max_examples=80)
@given(tries())
def test_windows_are_those_of_the_trie(trie):
    windows, order, vocab_size, data = trie
    totals = totals_of(windows)
    expected = {
        gram: windows.get(gram, 0)
        for gram in totals
        # A count of 0 matters only if nothing else implies the n-gram.
        if windows.get(gram) or not any(longer[:-1] == gram for longer in totals)
    }
    actual, layout = read_windows(data, vocab_size)
    assert (layout.order, layout.vocab_size) == (order, vocab_size)
    assert list(actual.items()) == sorted(expected.items())


@given(tries(), st.lists(st.integers(0, 700)))
def test_pieces_of_any_size_give_the_same_nodes(trie, cuts):
    *_, vocab_size, data = trie
    data = np.frombuffer(data, np.uint8)
    header, body = data[:16], data[16:]

    def nodes_of(pieces):
        parser = _core.ReferenceTrieParser(header, len(data), vocab_size)
        columns = {}
        for piece in pieces:
            for kind, nodes in enumerate(parser.feed(piece)):
                for name, column in nodes.items():
                    columns.setdefault((kind, name), []).extend(column.tolist())
        parser.finish()
        return columns

    pieces = np.split(body, sorted(min(cut, len(body)) for cut in cuts))
    assert nodes_of(pieces) == nodes_of([body])


def counted_file(documents, layout, path):
    """The n-gram file of some documents without a detour over a trie, as bytes."""
    offsets = np.cumsum([0, *map(len, documents)])
    windows = layout.windows(np.concatenate(documents).astype(np.int32), offsets)
    words, counts = np.unique(windows, axis=0, return_counts=True)
    builder = NgramBuilder(layout)
    builder.add(words, counts)
    builder.write(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["qwen3-tied", "qwen3-draft-vocab"])
def test_golden_tries_give_the_file_that_their_corpus_gives(name, tmp_path):
    source = GOLDEN / name / "ngram" / "small.trie"
    out = tmp_path / "new" / "model.ngram"
    convert_reference(source, out, vocab_size=512, memory=MEMORY, progress=False)
    assert list(out.parent.iterdir()) == [out]
    corpus = np.load(GOLDEN / name / "ngram_corpus.npy")
    assert out.read_bytes() == counted_file(corpus, WindowLayout(3, 512), tmp_path / "counted")


_DOCUMENTS = [[1, 2, 2, 1, 4], [1, 2]]
COUNTS = totals_of(Counter(tuple(d[i : i + 3]) for d in _DOCUMENTS for i in range(len(d))))


@pytest.fixture
def trie():
    return encode_counts(COUNTS, 3, np.random.default_rng(0))


def test_every_truncation_is_reported(trie):
    for size in range(len(trie)):
        with pytest.raises(UserError, match=r"truncated at byte|has only"):
            read_windows(trie[:size], 5)


@pytest.mark.long
@settings(max_examples=150)
@given(st.data())
def test_a_flipped_bit_is_reported_or_gives_a_trie(data):
    trie = bytearray(encode_counts(COUNTS, 3, np.random.default_rng(0)))
    bit = data.draw(st.integers(0, 8 * len(trie) - 1))
    trie[bit // 8] ^= 1 << bit % 8
    try:
        windows, layout = read_windows(trie, 5)
    except UserError:
        return
    assert list(windows) == sorted(windows)
    assert max(map(len, windows)) <= layout.order
    assert set(totals_of(windows)) == set(COUNTS)  # only counts can change undetected


def nodes(*rows):
    """The file of order 3 with nodes (token, parent, count) behind a root."""
    columns = np.array([(0, 0, 9), *rows]).T
    return encode(3, *columns, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an n-gram trie of the reference: it has only 0 bytes"),
        (b"dartngm\n" * 9, "is not an n-gram trie of the reference$"),
        (struct.pack("<QQ", 3, 0), "is not an n-gram trie of the reference$"),
        (struct.pack("<QQ", 3, 2) + bytes(84), r"is an automaton \(.aca\), not a trie: convert"),
        (nodes((1, 0, 9)) + b"\n", "it has 77 bytes, but 2 nodes take 76"),
        (nodes((5, 0, 9)), r"node 1, at byte \d+, has token 5, .* vocabulary of 5"),
        (nodes((-1, 0, 9)), "node 1, .* has token -1"),
        (nodes((1, 0, -3)), "node 1, .* the count -3: it overflowed"),
        (nodes((1, 0, 9), (1, 2, 9)), "node 2, .* names node 2 as its parent"),
        (nodes((1, 0, 9), (1, 0, 9)), "node 0, at byte 16, lists two children with token 1"),
        (nodes((1, 0, 9), (1, 3, 9), (1, 2, 9)), "its root does not reach 2 of the nodes"),
        (nodes((1, 0, 9), (1, 1, 9), (1, 2, 9), (1, 3, 9)), "n-grams of more than 3 tokens"),
        (nodes((1, 0, 9), (2, 1, 7), (1, 2, 9)), r"n-gram \[1, 2\] 2 times less often"),
        (nodes((1, 0, 5), (2, 1, 3), (1, 1, 4)), r"n-gram \[1\] 2 times less often"),
    ],
)
def test_damage_is_described(data, message):
    with pytest.raises(UserError, match=rf"small\.trie .*{message}") as raised:
        read_windows(data, 5)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("order", [1, 6])
def test_other_orders_are_reported(order):
    data = encode_counts({(1,): 1}, order, np.random.default_rng(0))
    with pytest.raises(UserError, match=f"up to {order} tokens; 2 to 5 can be converted"):
        read_windows(data, 5)


def test_children_must_be_those_that_name_the_node(trie):
    data = bytearray(nodes((1, 0, 9), (2, 0, 9)))
    # The token of the root's first child, after the header and the root's own fields.
    struct.pack_into("<i", data, 16 + 24, 3)
    with pytest.raises(UserError, match="children that its nodes list are not those that name"):
        read_windows(data, 5)


def test_unreadable_files_are_reported(tmp_path):
    for source in [tmp_path / "missing", tmp_path]:
        with pytest.raises(UserError, match=f"cannot read n-gram trie {re.escape(str(source))}: "):
            convert_reference(source, tmp_path / "out", vocab_size=5, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_reported(trie, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"100 MB of memory are too little .* at least 250 MB"):
        convert_reference(tmp_path, tmp_path / "out", vocab_size=5, memory=10**8, progress=False)

    monkeypatch.setattr(reference, "_THREAD", 10**5)
    monkeypatch.setattr(reference, "_OWN", MEMORY - 10**5)
    with pytest.raises(UserError, match=r"cannot convert .* with 500 MB of memory and .*: \S"):
        read_windows(trie, 5)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, UserError])
def test_an_interrupted_conversion_leaves_no_files(error, trie, tmp_path, monkeypatch):
    def add(self, words, counts):
        assert list(tmp_path.glob(".dart-ngram-*/*"))
        raise error

    monkeypatch.setattr(reference.NgramBuilder, "add", add)
    source, out = tmp_path / "small.trie", tmp_path / "model.ngram"
    source.write_bytes(trie)
    out.write_text("the one before")
    with pytest.raises(error):
        convert_reference(source, out, vocab_size=5, progress=False)
    assert set(tmp_path.iterdir()) == {source, out}
    assert out.read_text() == "the one before"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory that Linux reports")
def test_memory_is_bounded(tmp_path):
    """The nodes of this file alone, as they come, would fill what the process may take."""
    inner, fan_out = 20_000, 200
    token = np.concatenate([[0], np.arange(inner), np.tile(np.arange(fan_out), inner)])
    parent = np.concatenate([np.zeros(1 + inner, int), np.repeat(np.arange(inner) + 1, fan_out)])
    count = np.concatenate([[0], np.full(inner, fan_out), np.ones(inner * fan_out)])
    rng = np.random.default_rng(0)
    ids = np.concatenate([[0], rng.permutation(len(token) - 1) + 1])
    columns = np.zeros((3, len(token)), np.int64)
    columns[:, ids] = token, ids[parent], count
    source = tmp_path / "large.trie"
    source.write_bytes(encode(2, *columns, rng))

    memory = 260 * 10**6
    program = f"""
from pathlib import Path
from dart_jax.ngram.reference import convert_reference
convert_reference("large.trie", "out", vocab_size={inner}, memory={memory}, progress=False)
print(Path("/proc/self/status").read_text())
"""
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", run.stdout)[1]) * 1024
    assert peak < memory
    assert NgramModel.load(tmp_path / "out").sizes == (inner, inner * fan_out)
