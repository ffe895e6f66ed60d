"""The n-gram file against an independent reader, written only from docs/ngram-format.md, and what
the real reader makes of damaged files."""

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_corpora import (
    brute_force_windows,
    build,
    corpora,
    counts_of,
    forget,
    orders,
    random_documents,
    seeds,
)

from dart_jax.ngram import NgramModel

HEADER = struct.Struct("<8s4I3Q5Q5Q5Q32s2IQ3Q3QQ")
CHUNK = 16


class Bits:
    """A bit string, lowest bit first, that is read field by field."""

    def __init__(self, data: bytes):
        self.bits, self.at = int.from_bytes(data, "little"), 0

    def read(self, width: int) -> int:
        field = self.bits >> self.at & ((1 << width) - 1)
        self.at += width
        return field

    def fields(self, count: int, width: int) -> list[int]:
        return [self.read(width) for _ in range(count)]


class Reader:
    """Reads a file as its documentation says, in no hurry."""

    def __init__(self, data: bytes):
        fields = list(HEADER.unpack_from(data))

        def take(n):
            return [fields.pop(0) for _ in range(n)]

        self.magic, self.version, self.bytes, self.order, self.precision = take(5)
        self.vocab_size, self.smallest, self.tokens = take(3)
        self.ngrams, self.dropped, self.min_count = take(5), take(5), take(5)
        self.fingerprint, count_bits, offset_bits, self.list_bits = take(4)
        self.lists, self.unigrams, self.checksum = take(3), take(3), take(1)[0]
        self.sections = [
            data[offset : offset + size] for offset, size, _ in (self.lists, self.unigrams)
        ]
        self.bits, table = Bits(self.sections[0]), Bits(self.sections[1])
        entries = [
            (table.read(count_bits), table.read(offset_bits)) for _ in range(self.vocab_size)
        ]
        self.codes = [code for code, _ in entries]
        self.end = (table.read(count_bits), table.read(offset_bits))
        self.begins = [begin for _, begin in entries] + [self.end[1]]
        self.table_bits = table.at

    def counts(self) -> dict[tuple[int, ...], int]:
        """Every n-gram with its count; tokens that do not occur have count 0."""
        self.counted = {}
        self.followers = {}  # of every context, in order
        # Shortest contexts first: their lists are the universes of longer ones.
        pending = []
        for token, code in enumerate(self.codes):
            self.counted[(token,)] = self.count(code)
            pending.append(((token,), code, self.begins[token], self.begins[token + 1]))
        for _ in range(self.order - 1):
            pending = [child for context in pending for child in self.list(*context)]
        return self.counted

    def count(self, code: int) -> int:
        p = self.precision
        if p == 0 or code < 1 << p:
            return code
        exponent = (code >> (p - 1)) - 1
        return (code % (1 << (p - 1)) + (1 << (p - 1))) << exponent

    def list(self, context, code, begin, end):
        """Reads the list of a context. Returns its entries with where their own lists lie."""
        shorter = range(self.vocab_size) if len(context) == 1 else self.followers[context[1:]]
        inner = len(context) < self.order - 1
        self.followers[context] = []
        if begin == end:
            return []
        read, fields = self.bits.read, self.bits.fields
        self.bits.at = begin
        bound = code - self.smallest
        position_bits = max(1, (len(shorter) - 1).bit_length())
        width_bits = bound.bit_length().bit_length()

        if bound == 0 and self.smallest == 1:
            positions, codes = [read(position_bits)], [0]
            lengths, bases = [end - self.bits.at], [self.bits.at]
        elif read(1) == 0:
            code_bits = read(width_bits)
            size, length_bits = (read(4) + 1, read(6)) if inner else (None, 0)
            if size is None:
                size, rest = divmod(end - self.bits.at, position_bits + code_bits)
                assert rest == 0
                assert size <= CHUNK
            positions, codes = fields(size, position_bits), fields(size, code_bits)
            lengths = fields(size, length_bits)
            bases = [self.bits.at]
        else:
            size = read(len(shorter).bit_length())
            assert size > CHUNK
            offset_bits = read(6)
            base_bits = read(6) if inner else 0
            chunks = range(-(-size // CHUNK))
            directory = [(read(position_bits), read(offset_bits), read(base_bits)) for _ in chunks]
            positions, codes, lengths, bases = [], [], [], []
            for i, (first, offset, base) in enumerate(directory):
                assert self.bits.at == begin + offset  # chunks follow without gaps
                members = min(CHUNK, size - i * CHUNK)
                chunk_bits, code_bits = read(5), read(width_bits)
                length_bits = read(6) if inner else 0
                positions += [first] + [first + p for p in fields(members - 1, chunk_bits)]
                codes += fields(members, code_bits)
                lengths += fields(members, length_bits)
                bases.append(begin + base)

        # The entries' regions follow without gaps, up to the end of this one.
        at = self.bits.at
        assert not inner or bases[0] == at
        children = []
        for i, (position, code) in enumerate(zip(positions, codes, strict=True)):
            assert code <= bound
            if inner and len(bases) > 1 and i % CHUNK == 0:
                assert at == bases[i // CHUNK]
            gram = (*context, shorter[position])
            self.followers[context].append(gram[-1])
            self.counted[gram] = self.count(code + self.smallest)
            children.append((gram, code + self.smallest, at, at + lengths[i]))
            at += lengths[i] if inner else 0
        assert at == end
        assert positions == sorted(set(positions))
        return children if inner else []


def same_counts(data: bytes, model: NgramModel) -> None:
    model.check()
    reader = Reader(data)
    counts = counts_of(model)
    counted = reader.counts()
    assert {g: c for g, c in counted.items() if c or len(g) > 1} == {
        g: c for g, c in counts.items() if c or len(g) > 1
    }
    assert counted.keys() >= counts.keys()  # tokens counted 0 times that others need

    header = model.header
    assert reader.magic == b"dartngm\n"
    assert (reader.version, reader.bytes) == (1, HEADER.size) == (header["version"], 272)
    assert (reader.order, reader.precision) == (model.order, header["precision"])
    assert (reader.vocab_size, reader.tokens) == (model.vocab_size, header["tokens"])
    assert reader.smallest == (0 if any(not c and len(g) > 1 for g, c in counts.items()) else 1)
    assert reader.fingerprint == model.fingerprint
    for n in range(5):
        expected = (
            [header[name][n] for name in ("ngrams", "dropped", "min_count")]
            if n < model.order
            else [0, 0, 0]
        )
        assert [reader.ngrams[n], reader.dropped[n], reader.min_count[n]] == expected
    assert list(model.sizes) == [
        sum(len(gram) == n for gram in counts) for n in range(1, model.order + 1)
    ]

    # No gaps between the sections; padding is zero; all checksums match.
    assert reader.lists[0] == HEADER.size
    assert reader.unigrams[0] == HEADER.size + reader.lists[1]
    assert len(data) == reader.unigrams[0] + reader.unigrams[1]
    bits = [reader.list_bits, reader.table_bits]
    for section, used, (_, size, checksum) in zip(
        reader.sections, bits, (reader.lists, reader.unigrams), strict=True
    ):
        assert size == -(-used // 64) * 8 + 8
        assert int.from_bytes(section, "little") >> used == 0
        assert xxhash.xxh64_intdigest(section) == checksum
    assert xxhash.xxh64_intdigest(data[: HEADER.size - 8]) == reader.checksum
    assert reader.end == (0, reader.list_bits)


@pytest.fixture(scope="module")
def directory():
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@settings(max_examples=60)
@given(
    corpora(),
    orders,
    st.sampled_from([None, 2, 5, 16]),
    st.sampled_from([(0, 0.0), (3, 0.0), (0, 0.2), (0, 1.0)]),
    seeds,
)
def test_another_reader_finds_the_same(directory, corpus, order, precision, loss, seed):
    """In files without rare n-grams, and in those with n-grams that are there but not counted."""
    documents, vocab_size = corpus
    least, zeros = loss
    options = {"precision": precision, "min_counts": [least] * order, "fingerprint": b"?" * 32}
    windows = forget(brute_force_windows(documents, order), seed, zeros)
    model = build(directory / "model", windows, order, vocab_size, **options)
    same_counts(model.file.tobytes(), model)


def test_another_reader_reads_long_lists():
    documents = random_documents(1, 3000, documents=8, length=1500)
    model = NgramModel.count(documents, 3, vocab_size=3000)
    same_counts(model.file.tobytes(), model)


# Damage


def load_bytes(data, *, checksums=True):
    return NgramModel(np.array(bytearray(data), np.uint8), checksums=checksums)


@pytest.fixture(scope="module")
def small():
    return NgramModel.count([[1, 2, 3, 1, 2, 4], [30, 2]]).file.tobytes()


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
def test_impossible_headers_are_reported(small, offset, layout, value, message):
    data = bytearray(small)
    struct.pack_into(layout, data, offset, value)
    with pytest.raises(ValueError, match=message):
        load_bytes(with_checksums(data))


def test_lists_that_overlap_are_reported():
    """Every other token's list is the same one: what would grow with the square of the file."""
    vocab_size = 400
    model = NgramModel.count([[0, t] for t in range(vocab_size)], 2, vocab_size=vocab_size)
    data = bytearray(model.file.tobytes())
    reader = Reader(data)
    count_bits, offset_bits = struct.unpack_from("<2I", data, 200)
    table = 0
    for token in range(vocab_size + 1):
        entry = vocab_size | (token % 2 * reader.list_bits) << count_bits
        table |= entry << token * (count_bits + offset_bits)
    offset, size, _ = reader.unigrams
    data[offset : offset + size] = table.to_bytes(size, "little")
    struct.pack_into("<5Q", data, 48, *[2**63] * 5)
    hostile = NgramModel(np.frombuffer(with_checksums(data), np.uint8))
    with pytest.raises(ValueError, match="lists overlap"):
        _ = hostile.levels
    with pytest.raises(ValueError, match="its lists are not in order"):
        hostile.check()
