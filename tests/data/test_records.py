"""Records of JSON files: broken lines and ends that are cut off cost themselves alone."""

import bz2
import gzip
import json
import lzma
import tracemalloc

import pytest

from dart_jax.data import json_values
from dart_jax.data.records import Skipped, records
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


def read(path):
    """The values of a file, and the errors of what was skipped."""
    errors = []
    values = [record.value for record in records(path, bad=errors.append)]
    if errors:
        with pytest.raises(UserError, match=r"; --skip-bad skips such records$"):
            list(records(path))
    return values, [str(error) for error in errors]


def dump(values, indent):
    return json.dumps(values, indent=indent, ensure_ascii=bool(indent))


# Broken files


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("values", [CHATS, TEXTS, [chat["conversations"] for chat in CHATS]])
@pytest.mark.parametrize("chunk", [7, 2**16])
def test_an_array_that_is_cut_off(tmp_path, monkeypatch, values, indent, chunk):
    monkeypatch.setattr(json_values, "_CHUNK", chunk)
    path = tmp_path / "a.json"
    text = dump(values, indent)
    last = text.rindex(dump(values[-1], indent).split("\n", 1)[0])
    for cut in (last + 1, last + 9, len(text) - 10, len(text) - 3):
        path.write_text(text[:cut])
        found, errors = read(path)
        assert found == values[:-1], cut
        assert len(errors) == 1
        assert errors[0].endswith("broken JSON: the file ends inside of this record")
    path.write_text(text[:last])
    assert read(path)[0] == values[:-1]
    path.write_text(text.rstrip().removesuffix("]"))
    found, errors = read(path)
    assert found == values
    assert errors == [f"{path}:{1 + text.count(chr(10))}: broken JSON: the array does not end"]


@pytest.mark.parametrize(
    ("whole", "broken"),
    [("см. \\", "см. \\x"), ('"human"', "human"), ('"from":', '"from"'), ('"id"', "id")],
    ids=["escape", "quotes", "colon", "first name"],
)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_what_is_broken_in_the_middle(tmp_path, name, whole, broken):
    """A line costs itself; the elements of an array behind it cannot be found."""
    texts = [json.dumps(chat, ensure_ascii=False) for chat in CHATS]
    assert whole in texts[4]
    texts[4] = texts[4].replace(whole, broken)
    path, separator = tmp_path / name, ",\n"
    path.write_text("\n".join(texts) if name == "a.jsonl" else f"[\n{separator.join(texts)}]")
    if name == "a.jsonl":
        found, errors = read(path)
        assert found == CHATS[:4] + CHATS[5:]
        assert [error.partition(" ")[0] for error in errors] == [f"{path}:5:"]
        return
    found = []
    with pytest.raises(UserError, match=r"a\.json:6: broken JSON: .*one record per line, of which"):
        found.extend(record.value for record in records(path, bad=Skipped()))


def test_broken_lines_cost_themselves(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(chat).encode() for chat in CHATS]
    lines[2:3] = [b'{"id": "\xff"}', lines[2][:-5], b"", b"  ", b"null", b'{"n": ' + b"9" * 5000]
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n")
    found, errors = read(path)
    assert found == CHATS[:2] + CHATS[3:]
    assert [error.split(": ")[0] for error in errors] == [f"{path}:{n}" for n in (3, 4, 8)]


def test_what_is_not_utf_8_costs_itself(tmp_path):
    path = tmp_path / "a.json"
    text = json.dumps(CHATS, ensure_ascii=False).encode()
    path.write_bytes(text.replace("4: см".encode(), b"4: \xf1\xec"))
    found, errors = read(path)
    assert found == CHATS[:4] + CHATS[5:]
    assert errors == [f"{path}:1: it is not UTF-8 text"]
    path.write_bytes(text.decode().encode("utf-16"))
    with pytest.raises(UserError, match=r"a\.json is UTF-16; write it as UTF-8: iconv -f UTF-16"):
        list(records(path, bad=Skipped()))


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": lambda text: bz2.compress(text, 1),  # in small blocks
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("compression", [*COMPRESS, ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_compressed_files_that_are_cut_off(tmp_path, compression, name):
    """What was read before counts; the rest is one bad record, whatever its text ends with."""
    compress = COMPRESS.get(compression)
    if compress is None:
        zstandard = pytest.importorskip("zstandard")
        compress = zstandard.ZstdCompressor(write_content_size=False).compress
    # Random ids, so that much of a file is many of its records.
    chats = [chat | {"id": f"{hash(('id', n)):x}"} for n, chat in enumerate(CHATS * 300)]
    text = json.dumps(chats) if name == "a.json" else "\n".join(map(json.dumps, chats))
    whole = compress(text.encode())
    path = tmp_path / (name + compression)
    path.write_bytes(whole[: len(whole) * 2 // 3])
    found, errors = read(path)
    assert found == chats[: len(found)]
    assert len(found) > 1200
    assert len(errors) == 1
    assert errors[0].startswith(f"cannot read all of {path}: ")


@pytest.mark.parametrize("text", [b"PAR1", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_damaged_table(tmp_path, text):
    path = tmp_path / "a.parquet"
    path.write_bytes(text)
    found, errors = read(path)
    assert not found
    assert len(errors) == 1
    assert errors[0].startswith(f"cannot read all of {path}: ")


# Forms


def test_lines_and_arrays_under_either_name(tmp_path):
    for text in (
        "".join(json.dumps(chat) + "\n" for chat in CHATS),
        json.dumps(CHATS),
        json.dumps(CHATS) + "\n",
        "\ufeff\n" + json.dumps(CHATS, indent=1).replace("\n", "\r\n"),
        "".join(json.dumps(chat, indent=1) + "\n" for chat in CHATS),
        json.dumps(CHATS[:4]) + "\n" + json.dumps(CHATS[4:]),
    ):
        for name in ("a.json", "a.jsonl"):
            if (
                name == "a.jsonl"
                and text.startswith("[")
                and text.count("\n") == 1
                and text[-1] == "]"
            ):
                continue  # two lines, each of which is a record
            path = tmp_path / name
            path.write_text(text)
            assert read(path) == (CHATS, []), (name, text[:40])
    path = tmp_path / "lists.jsonl"
    lists = [chat["conversations"] for chat in CHATS]
    path.write_text("".join(json.dumps(turns) + "\n" for turns in lists))
    assert read(path) == (lists, [])


def test_unusual_values(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[null, {"a": Infinity, "b": null}, null, {"a": 1},]')
    assert read(path) == ([{"a": float("inf"), "b": None}, {"a": 1}], [])
    path.write_text("[" * 5000)
    with pytest.raises(UserError, match=r"a\.json:1: broken JSON: "):
        list(records(path))


# Memory


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_memory_is_bounded(tmp_path, monkeypatch, name):
    """By the longest value that is read, whatever the file's size, and whatever is broken in it."""
    monkeypatch.setattr(json_values, "LONGEST", 2**16)
    monkeypatch.setattr(json_values, "_CHUNK", 2**12)
    texts = [json.dumps({"text": "x" * 2**14, "n": n}) for n in range(500)]
    texts[400] = json.dumps({"text": "y" * 2**17, "n": 400})
    path = tmp_path / name
    path.write_text(f"[{', '.join(texts)}]" if name == "a.json" else "\n".join(texts))
    errors, numbers = [], []
    tracemalloc.start()
    try:
        for record in records(path, bad=errors.append):
            numbers.append(record.value["n"])
    except UserError as error:
        errors.append(error)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert numbers == [n for n in range(400 if name == "a.json" else 500) if n != 400]
    assert peak < 12 * 2**16
    assert "characters, or does not end" in str(errors[0])
    assert len(errors) == 1
