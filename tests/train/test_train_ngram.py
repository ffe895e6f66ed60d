"""Counting an n-gram model: formats, the same bytes whatever the machine does, bad input."""

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import time

import duckdb
import numpy as np
import pytest
import tokenizers
import transformers
from ngram_corpora import brute_force_counts, counts_of
from tokenizers import models, pre_tokenizers, processors

from dart_jax.data.records import find_files, zstd
from dart_jax.errors import UserError
from dart_jax.ngram import NgramModel, WindowLayout, runs
from dart_jax.progress import progress_bars
from dart_jax.text.fingerprint import tokenizer_fingerprint
from train.counting import pipeline, program
from train.counting.config import NgramConfig
from train.counting.workers import Workers
from train.data import examples
from train.data.examples import read_all

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}"
CHAT = [{"role": "user", "content": "how?"}, {"role": "assistant", "content": "so."}]
COMPRESS = {".gz": gzip, ".bz2": bz2, ".xz": lzma, ".zst": zstd}


@pytest.fixture(scope="module")
def tokenizer():
    """One token a byte, `<s>` before a text, and `</s>` for its end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({c: n for n, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer_directory(tokenizer, tmp_path_factory):
    """The tokenizer as transformers keeps it, with a chat template, padding and truncation."""
    padded = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    padded.enable_padding(pad_id=tokenizer.token_to_id("</s>"), pad_token="</s>", length=7)
    padded.enable_truncation(5)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=padded, eos_token="</s>")
    wrapped.chat_template = TEMPLATE
    directory = tmp_path_factory.mktemp("tokenizer")
    wrapped.save_pretrained(directory)
    padded.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def bare(tokenizer, tmp_path):
    """A tokenizer.json without special tokens around a text."""
    path = tmp_path / "tokenizer" / "tokenizer.json"
    return write(path, json.dumps({**json.loads(tokenizer.to_str()), "post_processor": None}))


@pytest.fixture
def count(tokenizer_directory, tmp_path):
    """Counts in this process, and gives the model's path."""
    pipeline._encoder.cache_clear()

    def count(*data, out="model.dng", **options):
        options = {"tokenizer": str(tokenizer_directory), "memory": "2GB", "workers": 1} | options
        config = NgramConfig(tuple(map(str, data)), out=tmp_path / out, **options)
        count.summary = program.run(config)
        return tmp_path / out

    return count


def decoded(path):
    return counts_of(NgramModel.load(path))


@pytest.fixture
def encode(tokenizer):
    """Token lists of texts, each closed by `</s>`."""
    end = tokenizer.token_to_id("</s>")
    return lambda texts: [[*tokenizer.encode(text).ids, end] for text in texts]


def write(path, data):
    """Writes text or bytes, compressed as the name says."""
    data = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(COMPRESS[path.suffix].compress(data) if path.suffix in COMPRESS else data)
    return path


def lines(texts, field="text"):
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in texts)


def words(seed, documents=40, length=60):
    """Random documents in which n-grams repeat."""
    rng = np.random.default_rng(seed)
    lexicon = np.array(["the ", "of ", "é", "n-gram ", "\n", "counts ", "日本", "a"])
    return ["".join(rng.choice(lexicon, rng.integers(1, length))) for _ in range(documents)]


# Reading


def test_all_forms_of_records_are_counted(tmp_path, count, tokenizer, encode):
    """The same that a drafter is trained on."""
    records = [
        {"conversations": [{"from": "human", "value": "how?"}, {"from": "gpt", "value": "so."}]},
        {"messages": CHAT[1:], "system": "how?"},
        {"prompt": "how", "completion": "ever"},
        {"tokens": [104, 111, 119], "prompt_length": 1, "text": "other"},
        "a text",
        {"text": "closed</s>"},
    ]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(each) + "\n" for each in records))
    end = [tokenizer.token_to_id("</s>")]
    chat = "<s>user: how?\n<s>assistant: so.\n"
    system = chat.replace("user", "system")
    rendered = [tokenizer.encode(text, add_special_tokens=False).ids for text in (chat, system)]
    expected = [[*ids, *end] for ids in (*rendered, [104, 111, 119])]
    expected += encode(["however", "a text", "closed"])
    assert decoded(count(path)) == brute_force_counts(expected, 3)


def test_bad_records_are_skipped_and_counted(tmp_path, count, encode, monkeypatch):
    """Also by a run that goes on."""
    monkeypatch.setattr(pipeline, "UNIT", 1)
    rows = ['{"text": "a"}', "{", '{"text": "b"}', '{"text": 3}', '{"tokens": [1, 999]}', '"c"']
    write(tmp_path / "data/a.jsonl", "\n".join(rows))
    write(tmp_path / "data/b.json", f"[{', '.join(rows[:1] * 3)}, {{")
    write(tmp_path / "data/c.txt", b"\xff")
    options = {"work": tmp_path / "work", "skip_bad": True, "keep_work": True}
    model = count(tmp_path / "data", **options)
    assert decoded(model) == brute_force_counts(encode("abcaaa"), 3)
    for _ in range(2):
        told = f", skipped 5 bad records, the first: {tmp_path}/data/a.jsonl:2: broken JSON"
        assert told in count.summary
        count(tmp_path / "data", **options)


def test_long_texts_are_cut_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "LONGEST", 16)
    text = "0123456\nabc\nde\n" * 9 + "x" * 40
    files = write(tmp_path / "a.txt", text), write(tmp_path / "a.jsonl", lines([text]))
    for path in files:
        pieces = list(read_all([path]))
        assert [piece.first for piece in pieces] == [True] + [False] * (len(pieces) - 1)
        assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        texts = [piece.content.text for piece in pieces]
        assert "".join(texts) == text
        assert max(map(len, texts)) == 16
        assert all(piece.endswith("\n") for piece in texts[:9])


def test_find_files(tmp_path):
    ours = ("b/out.jsonl.work/settings.json", "b/ngram.work/c/a.txt")
    for name in ("b/2.jsonl", "b/c/1.txt.gz", "b/c/x.py", "a.jsonl", *ours):
        write(tmp_path / name, "")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")

    def names(*patterns):
        found = find_files([str(tmp_path / pattern) for pattern in patterns])
        return [str(path.relative_to(tmp_path.resolve())) for path in found]

    assert names("b", "a.jsonl", "b/2.jsonl") == ["a.jsonl", "b/2.jsonl", "b/c/1.txt.gz"]
    assert names("**/*.py", "*.jsonl") == ["a.jsonl", "b/c/x.py"]
    assert names("link.jsonl") == ["a.jsonl"]
    assert names("b/ngram.work") == ["b/ngram.work/c/a.txt"]


# Counting


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_counts_are_those_of_brute_force(tmp_path, count, encode, tokenizer, order):
    texts = words(order)
    write(tmp_path / "data/a.jsonl.gz", lines(texts[:10]))
    write(tmp_path / "data/b.json", json.dumps(texts[10:20]))
    write(tmp_path / "data/c.jsonl.zst", lines(texts[20:30]))
    for i, text in enumerate(texts[30:]):
        write(tmp_path / f"data/d/{i}.txt", text)
    path = count(tmp_path / "data", order=order)
    assert decoded(path) == brute_force_counts(encode(texts), order)
    assert sorted(os.listdir(tmp_path)) == ["data", path.name]
    assert NgramModel.load(path).fingerprint == tokenizer_fingerprint(tokenizer)
    assert decoded(count(tmp_path / "data", limit=25)) == brute_force_counts(encode(texts[:25]), 3)


def test_output_among_the_data(count, tmp_path):
    """Neither the file nor what is kept beside it is ever counted, whatever it looks like."""
    write(tmp_path / "data/a.jsonl", lines(words(1)))
    options = {"out": "data/model.txt", "keep_work": True}
    first = count(tmp_path / "data", **options).read_bytes()
    assert count(tmp_path / "data", **options).read_bytes() == first
    assert list((tmp_path / "data/model.txt.work").glob("*.json"))


@pytest.mark.long
def test_large_row_groups_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    texts = "select repeat(chr(97 + (i % 26)::int) || i, 800) as text from range(60000) t(i)"
    duckdb.execute(f"copy ({texts}) to '{path}' (row_group_size 60000)")
    with pytest.raises(UserError, match=r"a\.parquet: its row groups are too large .* --memory"):
        list(read_all([path], memory=64 * 10**6))


def test_a_killed_worker_is_one_line():
    with Workers(2) as workers:
        [pid] = workers.map(os.getpid, [()])
        assert pid != os.getpid()
        with pytest.raises(UserError, match="a worker process was killed"):
            list(workers.map(os.kill, [(pid, signal.SIGKILL)]))


def test_slices_and_levels_of_merging_change_nothing(tmp_path, monkeypatch):
    """Windows of two words, whether or not they fit the memory at once."""
    monkeypatch.setattr(pipeline, "PART", 3000)
    monkeypatch.setattr(runs, "ROW_GROUP", 2048)
    layout, rng = WindowLayout(4, 2**20), np.random.default_rng(0)
    documents = [rng.integers(0, 20, n) * 50_000 for n in rng.integers(0, 200, 200)]
    offsets = np.cumsum([0, *map(len, documents)])
    whole = layout.windows(np.concatenate(documents), offsets)
    expected = np.unique(whole, axis=0, return_counts=True)
    for name, fan_in, slice_bytes in (("a", 100, 64), ("b", 2, 64 * 10**6 // 1000)):
        monkeypatch.setattr(pipeline, "FAN_IN", fan_in)
        monkeypatch.setattr(runs, "SLICE", slice_bytes)
        (tmp_path / name).mkdir()
        for number in range(5):
            batches = [(tokens, np.array([0, len(tokens)])) for tokens in documents[number::5]]
            runs.write_run(batches, layout, runs.run_path(tmp_path / name, number), 64 * 10**6)
        with progress_bars() as progress, monkeypatch.context() as patch:
            if fan_in == 2:  # runs that are merged whole do not fit
                patch.setattr(runs, "rows_in", lambda memory, layout: 1500)
            job = pipeline.Counting(tmp_path / name, layout, 64 * 10**6, Workers(1), progress)
            totals = pipeline.Totals(5, 200, len(whole), 0, 7)
            parts = [runs.read_run(part, layout) for part in job.merge(totals)]
        assert len(parts) > 1
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), expected[0])
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), expected[1])
        merged = len(list((tmp_path / name).glob("merged-*")))
        assert merged == len(parts) + (5 if fan_in == 2 else 0)


def test_the_end_of_documents(tmp_path, count, tokenizer, bare):
    """They are never joined."""
    data = write(tmp_path / "a.jsonl", lines(["xy", "xy"]))
    x, y = tokenizer.encode("xy", add_special_tokens=False).ids
    begin, end = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    assert decoded(count(data, no_eos=True, tokenizer=str(bare))) == {(x,): 2, (y,): 2, (x, y): 2}
    assert decoded(count(data, eos_token="<s>", out="named"))[y, begin] == 2
    assert (end,) not in decoded(count(data, no_eos=True, out="none"))


# The same bytes, whatever happens


CODE = """
if __name__ == "__main__":
    import train.ngram
    from train.counting import pipeline
    pipeline.UNIT, pipeline.PART = 8000, 3000
    train.ngram.main()
"""


@pytest.mark.long
def test_kill_and_resume(count, tmp_path, tokenizer_directory):
    """In several processes, with another memory limit."""
    write(tmp_path / "data/a.jsonl", lines(words(5, 1500)))
    write(tmp_path / "data/b.jsonl.gz", lines(words(6, 500)))
    expected = count(tmp_path / "data").read_bytes()
    out, work = tmp_path / "killed.dng", tmp_path / "killed.dng.work"
    paths = ("--data", tmp_path / "data", "--tokenizer", tokenizer_directory, "--out", out)
    options = (*map(str, paths), "--memory", "2300MB", "--keep-work")
    command = [sys.executable, "-c", CODE, "count", *options]

    def run(workers, until=10**9):
        """Runs; kills as soon as so many more files are done. Returns whether it ended itself."""
        kept = finished()
        with subprocess.Popen(
            [*command, "--workers", workers], stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None and len(finished()) < len(kept) + until:
                time.sleep(0.002)
            process.kill()
        assert kept.items() <= finished().items()
        return process.returncode == 0

    def finished():
        return {path.name: path.stat().st_ino for path in sorted(work.glob("*-*.parquet"))}

    assert not all([run("1", 1), run("2", 2), run("1", 5)])
    assert run("2")
    assert out.read_bytes() == expected
    # Everything is there: nothing is made again.
    kept = finished()
    assert run("1")
    assert finished() == kept


def test_work_directories_are_not_mixed(tmp_path, count):
    data = write(tmp_path / "a.jsonl", lines(words(7)))
    work = tmp_path / "work"
    count(data, work=work, keep_work=True)
    told = r"counts of 1 units, made with another --eos \(257, now unset\), --order \(3, now 2\); p"
    with pytest.raises(UserError, match=told):
        count(data, work=work, order=2, no_eos=True)
    with pytest.raises(UserError, match=r"all data lie in .*, where the program writes"):
        count(data, work=tmp_path)
    write(tmp_path / "other/file", "")
    with pytest.raises(UserError, match="holds other files"):
        count(data, work=tmp_path / "other")


def test_data_repaired_added_or_changed(tmp_path, count, monkeypatch):
    """A bad record ends the first run after some units; the counts are used, merged anew."""
    monkeypatch.setattr(pipeline, "UNIT", 4000)
    good, more = lines(words(7)), lines(words(8))
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write(first, good + '{"query": 1}\n')
    write(second, more)
    work = tmp_path / "work"
    # A run that fails before its first unit leaves the settings free.
    bad = write(tmp_path / "bad.json", '[{"text": "a"}, {"query": 1}]')
    with pytest.raises(UserError, match="it has the fields query"):
        count(bad, work=work, order=2)
    with pytest.raises(UserError, match="it has the fields query"):
        count(str(tmp_path / "*.jsonl"), work=work)
    before = {path: path.stat().st_ino for path in work.glob("run-*")}
    assert before
    write(first, good)
    expected = count(str(tmp_path / "*.jsonl")).read_bytes()
    options = {"work": work, "keep_work": True}
    assert count(str(tmp_path / "*.jsonl"), **options).read_bytes() == expected
    assert {path: path.stat().st_ino for path in before} == before
    write(tmp_path / "c.jsonl", good)
    expected = count(str(tmp_path / "*.jsonl")).read_bytes()
    assert count(str(tmp_path / "*.jsonl"), **options).read_bytes() == expected
    assert {path: path.stat().st_ino for path in before} == before
    write(first, more)
    expected = count(str(tmp_path / "*.jsonl")).read_bytes()
    assert count(str(tmp_path / "*.jsonl"), **options).read_bytes() == expected


# Bad input


@pytest.mark.parametrize(
    ("record", "options", "message"),
    [
        ("a", {"order": 6}, "--order must be 2 to 5, got 6"),
        ("a", {"workers": 0}, "--workers must be at least 1"),
        ("a", {"memory": "lots"}, "memory must be written like 4GB or 800MB, got 'lots'"),
        ("a", {"memory": "1GB", "workers": 4}, "4 workers need 2432MB, one needs 1088MB"),
        ("a", {"tokenizer": "/no/place"}, "no directory /no/place; pass one that exists, or owner"),
        ("a", {"eos_token": "<end>"}, "the tokenizer has no token '<end>'"),
        ("a", {"out": "no/model.dng"}, "no directory .*/no for --out; make it first"),
        ("a", {"field": "body"}, r"a\.jsonl:1: no field 'body'"),
        ("a", {"data": "missing"}, "no file or directory .*missing"),
        ("a", {"data": "*.none"}, r"no file is .*\*\.none"),
        ("a", {"data": "empty"}, r"no .*\.jsonl.* files in .*empty"),
        ({"body": "a"}, {}, "the fields body; .*, or name the field with --field"),
        ("", {}, "the data hold no text"),
        (
            {"messages": CHAT},
            {"chat_template_kwargs": json.dumps({"chat_template": "{{ raise_exception('no') }}"})},
            r"a\.jsonl:1: the chat template rejects the messages: no",
        ),
        ({"messages": CHAT}, {"tokenizer": "BARE", "no_eos": True}, "no chat template in"),
        ("a", {"tokenizer": "BARE"}, "names no token that ends a document; pass --eos-token"),
        ("a", {"tokenizer": "BROKEN"}, "cannot read"),
    ],
)
def test_bad_input(tmp_path, count, bare, record, options, message):
    record = {"text": record} if isinstance(record, str) else record
    data = write(tmp_path / "a.jsonl", json.dumps(record))
    (tmp_path / "empty").mkdir()
    places = {"BARE": bare, "BROKEN": write(tmp_path / "broken.json", "{}")}
    options = {
        name: str(places.get(each, each)) if name == "tokenizer" else each
        for name, each in options.items()
    }
    data = tmp_path / options.pop("data", data)
    with pytest.raises(UserError, match=message) as raised:
        count(data, **options)
    assert "\n" not in str(raised.value)


def test_the_end_that_a_model_names(bare):
    write(bare.with_name("generation_config.json"), '{"eos_token_id": [257, 256]}')
    assert program.eos_of(program.load(str(bare.parent)), None) == 257


def test_as_many_workers_as_cores_and_memory_allow(monkeypatch):
    monkeypatch.setattr(program, "available_cores", lambda: 5)
    assert [program.default_workers(m * 10**6) for m in (1088, 2056, 1_300_000)] == [1, 3, 5]
