"""Records of JSON files: broken lines cost themselves alone, a broken array what follows."""

import bz2
import gzip
import json
import lzma

import pytest

from dart_jax.data.records import records, zstd
from dart_jax.errors import UserError

CHATS = [
    {
        "id": f"c{n}",
        "conversations": [
            {"from": "human", "value": f'is {n} {{"odd"}}, [or] "even"?'},
            {"from": "gpt", "value": f"{n}: см. \\ \n"},
        ],
    }
    for n in range(9)
]
TEXTS = [f'text {n}, "quoted", {{}}' for n in range(9)]
COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": lambda text: bz2.compress(text, 1),  # in small blocks
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}


def read(path):
    """The values of a file, and the errors of what was skipped."""
    errors = []
    values = [record.value for record in records(path, bad=errors.append)]
    if errors:
        with pytest.raises(UserError, match=r"; --skip-bad skips such records$"):
            list(records(path))
    return values, [str(error) for error in errors]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("values", [CHATS, TEXTS, [chat["conversations"] for chat in CHATS]])
def test_arrays_whole_cut_off_and_broken(tmp_path, values, indent):
    """Reading ends at the damage, whose line is named."""
    path = tmp_path / "a.json"

    def dump(value):
        return json.dumps(value, indent=indent, ensure_ascii=bool(indent))

    text = dump(values)
    last = len(dump(values[:-1])[:-1].rstrip()) + (2 if indent is None else 4)
    sequence = "\n".join(map(dump, values)) if isinstance(values[0], dict) else text
    for whole in (text, "\ufeff\n" + text.replace("\n", "\r\n") + "\n", sequence):
        path.write_bytes(whole.encode())
        assert read(path) == (values, [])
    for cut in (last, last + 1, last + 9, len(text) - 10, len(text) - 3):
        path.write_text(text[:cut])
        records_read, [error] = read(path)
        assert records_read == values[:-1], cut
        line = 1 + text[:last].rstrip().count("\n") + (cut > last and indent is not None)
        assert error.startswith(f"{path}:{line}: broken JSON: ")
    path.write_text(text.removesuffix("]"))
    records_read, [error] = read(path)
    assert records_read == values
    path.write_text(text.replace('"', "", 1))
    records_read, [error] = read(path)
    assert records_read == []
    assert error.endswith("; nothing behind it is read")


def test_broken_lines_cost_themselves(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(chat).encode() for chat in CHATS]
    lines[2:3] = [b'{"id": "\xff"}', lines[2][:-5], b"", b"  ", b"null", b'{"n": ' + b"9" * 5000]
    lines[-2] = b"[" * 5000
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n")
    records_read, errors = read(path)
    assert records_read == [*CHATS[:2], *CHATS[3:7], CHATS[8]]
    assert [error.split(": ")[0] for error in errors] == [f"{path}:{n}" for n in (3, 4, 8, 13)]


def test_unusual_values(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[null, {"a": Infinity, "b": null}, null, {"a": 1},]')
    assert read(path) == ([{"a": float("inf"), "b": None}, {"a": 1}], [])
    path.write_bytes(json.dumps(CHATS).encode("utf-16"))
    with pytest.raises(UserError, match=r"a\.json is not UTF-8 text .*; convert it or leave"):
        list(records(path))


@pytest.mark.parametrize("compression", COMPRESS)
def test_compressed_files_whole_and_cut_off(tmp_path, compression):
    """Records before the damage count; the rest is one bad record, whatever its text ends with."""
    # Random ids, so that much of a file is many of its records.
    chats = [chat | {"id": f"{hash(('id', n)):x}"} for n, chat in enumerate(CHATS * 300)]
    whole = COMPRESS[compression]("\n".join(map(json.dumps, chats)).encode())
    path = tmp_path / f"a.jsonl{compression}"
    path.write_bytes(whole)
    assert read(path) == (chats, [])
    path.write_bytes(whole[: len(whole) * 2 // 3])
    records_read, [error] = read(path)
    assert records_read == chats[: len(records_read)]
    assert len(records_read) > 1200
    assert error.startswith(f"cannot read all of {path}: ")


def test_tables_that_cannot_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    for text in (b"PAR1", b"version https://git-lfs.github.com/spec/v1\n"):
        path.write_bytes(text)
        records_read, [error] = read(path)
        assert not records_read
        assert error.startswith(f"cannot read all of {path}: ")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^a Parquet file needs duckdb: pip install "):
        next(records(path, bad=print))
