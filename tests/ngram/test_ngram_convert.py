"""The converter of tries against the builder, and damaged tries."""

import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_corpora import (
    brute_force_counts,
    brute_force_windows,
    build,
    corpora,
    forget,
    ngram_counts,
    seeds,
)
from reference_trie import encode, encode_counts

from dart_jax.errors import UserError
from dart_jax.ngram import NgramModel, reference
from dart_jax.ngram.reference import convert_reference

MEMORY = 500 * 10**6
RNG = np.random.default_rng(0)
COUNTS = brute_force_counts([[1, 2, 2, 1, 4], [1, 2]], 3)


def converted(data, vocab_size=5):
    """The n-gram model of a trie, given as bytes."""
    with tempfile.TemporaryDirectory() as directory:
        source, out = Path(directory) / "small.trie", Path(directory) / "model.dng"
        source.write_bytes(data)
        convert_reference(source, out, vocab_size=vocab_size, memory=MEMORY)
        assert sorted(Path(directory).iterdir()) == [out, source]
        return NgramModel.load(out)


@pytest.fixture(scope="module")
def directory():
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@settings(max_examples=20)
@given(corpora(), st.integers(2, 5), st.sampled_from([None, 40_000]), seeds, st.booleans())
def test_a_trie_gives_the_file_of_its_windows(directory, corpus, order, size, seed, prunes):
    """Windows of one word or two; pruned tries have n-grams that are there but not counted."""
    documents, vocab_size = corpus
    vocab_size = size or vocab_size
    windows = forget(brute_force_windows(documents, order), seed, 0.3 * prunes)
    data = encode_counts(ngram_counts(windows), order, np.random.default_rng(seed))
    expected = build(directory / "expected", windows, order, vocab_size)
    assert converted(data, vocab_size).file.tobytes() == expected.file.tobytes()


@pytest.fixture
def trie():
    return encode_counts(COUNTS, 3, np.random.default_rng(0))


def nodes(*rows):
    """The file of order 3 with nodes (token, parent, count) behind a root."""
    columns = np.array([(0, 0, 9), *rows]).T
    return encode(3, *columns, RNG)


# The token of the root's first child, after the header and the root's own fields, is another.
OTHER_CHILD = bytearray(nodes((1, 0, 9), (2, 0, 9)))
struct.pack_into("<i", OTHER_CHILD, 16 + 24, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an n-gram trie of the reference: it has only 0 bytes"),
        (b"dartngm\n" * 9, "is not an n-gram trie of the reference$"),
        (struct.pack("<QQ", 3, 0), "is not an n-gram trie of the reference$"),
        (struct.pack("<QQ", 3, 2) + bytes(84), r"is an automaton \(.aca\), not a trie: convert"),
        (nodes((1, 0, 9))[:-5], "is truncated at byte|has only"),
        (nodes((1, 0, 9)) + b"\n", "it has 77 bytes, but 2 nodes take 76"),
        (nodes((5, 0, 9)), r"node 1, at byte \d+, has token 5, .* vocabulary of 5"),
        (nodes((-1, 0, 9)), "node 1, .* has token -1"),
        (nodes((1, 0, -3)), "node 1, .* the count -3: it overflowed"),
        (nodes((1, 0, 9), (1, 2, 9)), "node 2, .* names node 2 as its parent"),
        (nodes((1, 0, 9), (1, 0, 9)), "node 0, at byte 16, lists two children with token 1"),
        (
            nodes((1, 0, 9), (1, 3, 9), (1, 2, 9)),
            "root does not reach 2 of the nodes with children in 2 steps",
        ),
        (nodes((1, 0, 9), (1, 1, 9), (1, 2, 9), (1, 3, 9)), "root does not reach 1 of the nodes"),
        (nodes((1, 0, 9), (2, 1, 7), (1, 2, 9)), "counts 1 n-grams less often than what"),
        (nodes((1, 0, 5), (2, 1, 3), (1, 1, 4)), "counts 1 n-grams less often than what"),
        (OTHER_CHILD, "children that its nodes list are not those that name"),
        (encode_counts({(1,): 1}, 1, RNG), "up to 1 tokens; 2 to 5 can be converted"),
        (encode_counts({(1,): 1}, 6, RNG), "up to 6 tokens; 2 to 5 can be converted"),
    ],
)
def test_damage_is_described(data, message):
    with pytest.raises(UserError, match=rf"small\.trie .*{message}") as raised:
        converted(data)
    assert "\n" not in str(raised.value)


def test_unreadable_files_are_reported(tmp_path):
    for source in [tmp_path / "missing", tmp_path]:
        with pytest.raises(UserError, match=f"cannot convert {re.escape(str(source))} with"):
            convert_reference(source, tmp_path / "out", vocab_size=5)
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_reported(trie, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"100 MB of memory are too little .* at least 250 MB"):
        convert_reference(tmp_path, tmp_path / "out", vocab_size=5, memory=10**8)

    monkeypatch.setattr(reference, "_THREAD", 10**5)
    monkeypatch.setattr(reference, "_OWN", MEMORY - 10**5)
    with pytest.raises(UserError, match=r"cannot convert .* with 500 MB of memory and .*: \S"):
        converted(trie)


def test_an_interrupted_conversion_leaves_no_files(trie, tmp_path, monkeypatch):
    def add(self, words, counts):
        assert list(tmp_path.glob(".dart-ngram-*/*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(reference.NgramBuilder, "add", add)
    source, out = tmp_path / "small.trie", tmp_path / "model.ngram"
    source.write_bytes(trie)
    out.write_text("the one before")
    with pytest.raises(KeyboardInterrupt):
        convert_reference(source, out, vocab_size=5)
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
convert_reference(Path("large.trie"), Path("out"), vocab_size={inner}, memory={memory})
print(Path("/proc/self/status").read_text())
"""
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", run.stdout)[1]) * 1024
    assert peak < memory
    assert NgramModel.load(tmp_path / "out").sizes == (inner, inner * fan_out)
