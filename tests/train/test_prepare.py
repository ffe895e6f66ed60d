"""Preparing a data set: once, atomically, and again when anything changes."""

import collections
import dataclasses
import json
import os
import resource
import subprocess
import sys

import local_hub
import numpy as np
import pytest
import tokenizers_made

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from train.data import prepare as dataset
from train.data.packed_dataset import PackedBatches, PackedDataset, draft_vocabulary
from train.data.prepare import DataConfig, prepare

VOCABULARY = 400


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizers_made.write_chat(directory, tokenizers_made.byte_level(), tokenizers_made.TURNS)
    return Tokenizer.load(directory)


def records(count, seed=0):
    rng = np.random.default_rng(seed)
    words = np.array(["test ", "it's ", "naïve ", "Hello, ", "日本 "])

    def text():
        return "".join(rng.choice(words, rng.integers(1, 7)))

    return [{"question": f"{n} {text()}", "answer": text()} for n in range(count)]


def write(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


@pytest.fixture
def config(tmp_path):
    path = write(tmp_path / "data.jsonl", records(60))
    return DataConfig((str(path),), context=128, held_out=0.0)


@pytest.fixture
def make(tokenizer, tmp_path):
    """Prepares in one directory."""

    def make(config, directory="prepared", vocab_size=VOCABULARY, longest=256):
        return prepare(
            config, tokenizer, tmp_path / directory, vocab_size=vocab_size, longest=longest
        )

    return make


def documents(packed):
    """Tokens and supervision of every document."""
    found = collections.Counter()
    for start in range(packed.rows):
        batch = packed.batch(np.array([start]))
        for number in range(1, batch.document.max() + 1):
            chosen = batch.document == number
            key = tuple(batch.tokens[chosen].tolist()), tuple(batch.supervised[chosen].tolist())
            found[key] += 1
    return found


def test_what_is_prepared_is_what_was_encoded(config, make, tokenizer, capfd):
    training, held_out = make(config)
    told = capfd.readouterr().err
    assert f"training: {training}" in told
    assert "leaves no documents" not in told
    assert "60 documents" in str(training)
    assert held_out.rows == 0
    found = documents(training)
    assert sum(found.values()) == 60
    tokens = [t for t, _ in found]
    for record in records(60):
        messages = [{"role": "user", "content": record["question"]}]
        prompt = tokenizer.encode_chat(messages)
        (whole,) = [t for t in tokens if list(t[: len(prompt)]) == prompt]
        assert tokenizer.decode(whole[len(prompt) :]) == record["answer"] + "\n"
    batch = training.batch(np.array([1, 0, 1]))
    assert [array.dtype for array in batch[:3]] == [np.int32, np.int32, bool]
    assert [array.shape for array in batch[:3]] == [(3, 128)] * 3
    assert batch.outputs is None
    np.testing.assert_array_equal(batch.tokens[0], batch.tokens[2])
    assert isinstance(training.tokens, np.memmap)


def test_it_is_made_once(config, make, tmp_path, monkeypatch):
    first = make(config)
    made = dataset._make
    monkeypatch.setattr(dataset, "_make", None)
    again = make(config)
    for one, other in zip(first, again, strict=True):
        assert one.fingerprint == other.fingerprint
        np.testing.assert_array_equal(one.tokens, other.tokens)
    monkeypatch.setattr(dataset, "_make", made)
    # Elsewhere, from the same records in another file: other files, the same rows.
    path = write(tmp_path / "other.jsonl", records(60))
    elsewhere = make(dataclasses.replace(config, data=(str(path),)), "elsewhere")
    assert elsewhere.training.made_from != first.training.made_from
    assert elsewhere.training.fingerprint == first.training.fingerprint
    fingerprints = {first.training.fingerprint}
    for change in ({"context": 64}, {"loss_on": "all"}, {"limit": 50}, {"held_out": 0.2}):
        fingerprints.add(make(dataclasses.replace(config, **change)).training.fingerprint)
    write(tmp_path / "data.jsonl", records(61))
    fingerprints.add(make(config).training.fingerprint)
    fingerprints.add(make(config, vocab_size=70_000).training.fingerprint)
    assert len(fingerprints) == 7
    assert make(config, vocab_size=70_000).training.tokens.dtype == np.uint32
    assert sorted(os.listdir(tmp_path / "prepared")) == ["data", "data.lock"]


def test_what_is_not_whole_is_made_anew(config, make, tmp_path):
    whole = make(config)
    data = tmp_path / "prepared" / "data"
    expected = documents(whole.training)
    for path in sorted(data.iterdir()):
        if path.stat().st_size:
            content = path.read_bytes()
            path.write_bytes(content[:-1])
            assert documents(make(config).training) == expected
            assert path.read_bytes() == content
        path.unlink()
        assert documents(make(config).training) == expected


@pytest.mark.long
def test_a_killed_preparation_leaves_nothing_that_counts(config, make, tmp_path, tokenizer):
    program = f"""
import os, sys
from pathlib import Path
from dart_jax.text.tokenizer import Tokenizer
from train.data import prepare
from train.data.packed_dataset import Writer
finish = Writer.finish
Writer.finish = lambda writer, name: (finish(writer, name), os.kill(os.getpid(), 9))
config = prepare.DataConfig({config.data!r}, context=128, held_out=0.0)
tokenizer = Tokenizer.load(sys.argv[1])
prepare.prepare(config, tokenizer, Path(sys.argv[2]), vocab_size={VOCABULARY}, longest=256)
"""
    prepared = tmp_path / "prepared"
    command = [sys.executable, "-c", program, str(tokenizer.directory), str(prepared)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -9, killed.stderr
    (left,) = prepared.glob("data.tmp-*")
    assert PackedDataset.load(left, "training") is not None  # it came as far as that
    assert not (prepared / "data").exists()
    assert sum(documents(make(config).training).values()) == 60
    assert sorted(os.listdir(prepared)) == ["data", "data.lock"]


@pytest.mark.parametrize("held_out", [0.3, 20])
def test_held_out_records_are_the_same_ones_always(config, make, tmp_path, held_out):
    config = dataclasses.replace(config, held_out=held_out)
    training, kept = make(config)
    everything = documents(training) + documents(kept)
    assert everything == documents(make(dataclasses.replace(config, held_out=0)).training)
    count = sum(documents(kept).values())
    assert count == 20 if held_out == 20 else 5 < count < 35
    if held_out == 20:
        return
    # In another order, twice, and among others.
    values = [*records(20, seed=1), *reversed(records(60)), *records(60)]
    write(tmp_path / "data.jsonl", values)
    training_too, kept_too = make(config)
    for before, after in ((training, training_too), (kept, kept_too)):
        assert all(documents(after)[key] == 2 * n for key, n in documents(before).items())
    assert not documents(training_too) & documents(kept_too)


def test_a_held_out_share_of_nothing_is_told(config, make, capfd):
    assert not make(dataclasses.replace(config, held_out=1e-9)).held_out.rows
    assert "leaves no documents to evaluate the drafter on" in capfd.readouterr().err


def test_bad_records(config, make, tmp_path, capfd):
    values = [*records(3), {"a": 1}, {"tokens": [9, VOCABULARY], "prompt_length": 1}, *records(2)]
    path = write(tmp_path / "data.jsonl", values)
    with path.open("a") as file:
        file.write('{"text": \n')
    with pytest.raises(UserError, match=r"data\.jsonl:4: .*it has the fields a;"):
        make(config)
    assert not (tmp_path / "prepared" / "data").exists()
    training, _ = make(dataclasses.replace(config, skip_bad=True))
    assert sum(documents(training).values()) == 5
    assert f"skipped 3 bad records, the first: {path}:4: " in capfd.readouterr().err


def test_errors(config, make, tmp_path):
    def fails(match, **changes):
        with pytest.raises(UserError, match=match) as raised:
            make(dataclasses.replace(config, **changes))
        assert "\n" not in str(raised.value)

    path = tmp_path / "data.jsonl"
    fails("no file or directory missing", data=("missing",))
    fails("context must be at least 2", context=1)
    fails("held-out must be a fraction or a number of records, got 2.5", held_out=2.5)
    fails("held-out must be a fraction or a number of records, got nan", held_out=float("nan"))
    fails("limit must be at least 1", limit=0)
    fails("chat-template-kwargs is not JSON", chat_template_kwargs="{")
    fails("chat-template-kwargs must be a JSON object", chat_template_kwargs="[]")
    fails("is left to train on; --held-out 60 takes all 60 documents", held_out=60)
    fails("nothing in .* is left to train on", context=2)
    path.write_text("")
    fails(r"data\.jsonl holds no examples; leave it out")
    write(path, [{"a": 1}])
    fails(
        r"nothing in .* to train on; the first that was skipped: .*jsonl:1: not a chat",
        skip_bad=True,
    )
    (tmp_path / "prepared").rename(tmp_path / "moved")
    (tmp_path / "prepared").write_text("")
    fails(r"cannot write the prepared data to .*prepared: File exists; free")


def test_the_context_fits_the_target(config, make):
    unset = dataclasses.replace(config, context=None)
    assert make(unset, longest=100).training.context == 100
    assert make(unset, "long", longest=8000).training.context == 6400
    # The same rows as with the number given.
    ours, theirs = make(unset, longest=128).training, make(config, "given").training
    assert (ours.made_from, ours.fingerprint) == (theirs.made_from, theirs.fingerprint)
    assert make(config, longest=128).training.context == 128
    with pytest.raises(UserError, match="--context 128 is beyond the target's 127 positions"):
        make(config, longest=127)


def test_a_full_disk_is_one_line(config, make, tmp_path):
    """And earlier data stay."""
    before = make(config)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*prepared: File too large; free disk"):
            make(dataclasses.replace(config, context=256))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert sorted(os.listdir(tmp_path / "prepared")) == ["data", "data.lock"]
    assert documents(make(config).training) == documents(before.training)


def test_batches_are_rows_in_their_order(config, make):
    training, _ = make(config)
    batches = PackedBatches(training, 4, seed=1)
    whole = training.batch(batches.order(7))
    for rows in (slice(0, 4), slice(1, 3)):
        batch = batches(7, rows)
        np.testing.assert_array_equal(batch.tokens, whole.tokens[rows])
        np.testing.assert_array_equal(batch.supervised, whole.supervised[rows])
    others = [PackedBatches(training, 4, seed=2), PackedBatches(training, 3, seed=1)]
    assert len({each.fingerprint for each in (batches, *others)}) == 3


def test_draft_vocabulary(config, make):
    training, _ = make(config)
    counts = np.zeros(VOCABULARY, int)
    for (tokens, supervised), times in documents(training).items():
        for token, on in zip(tokens, supervised, strict=True):
            counts[token] += times * on
    ranked = sorted(range(VOCABULARY), key=lambda token: (-counts[token], token))
    for size in (1, 7, (counts > 0).sum(), VOCABULARY):
        ids = draft_vocabulary(training, size)
        assert ids.dtype == np.int32
        assert ids.tolist() == sorted(ranked[:size])
    assert counts[training.tokens].max() > 0
    with pytest.raises(UserError, match=rf"must have 1\.\.{VOCABULARY} tokens, got 0"):
        draft_vocabulary(training, 0)


@pytest.mark.long
def test_data_of_the_hub(tmp_path):
    """In separate processes, which read the hub's settings."""
    program = """
import sys
from dart_jax.data.records import find_files
from dart_jax.errors import UserError
for name in sys.argv[1:]:
    try:
        print(*(path.name for path in find_files([name])))
    except UserError as error:
        print(error)
"""
    files = ("README.md", "data/train-0.jsonl", "data/train-1.jsonl", "test.jsonl")
    with local_hub.serve() as served:
        served.repositories["datasets/some/chats"] = {name: name.encode() for name in files}

        def ask(*names, endpoint=served.address):
            done = subprocess.run(
                [sys.executable, "-c", program, *names],
                capture_output=True,
                text=True,
                timeout=60,
                env=local_hub.environment(tmp_path / "home", endpoint),
            )
            return done.stdout.splitlines()

        paths = ("/data/*-1*", "/data", "", "/x")
        told = ask(*(f"hub:some/chats{path}" for path in paths), "hub:some/other", "hub:chats")
        assert told[:3] == [
            "train-1.jsonl",
            "train-0.jsonl train-1.jsonl",
            "train-0.jsonl train-1.jsonl test.jsonl",
        ]
        assert served.fetched[0] == "data/train-1.jsonl"
        assert told[3].endswith("files in hub:some/chats/x")
        assert "some/other cannot be taken from the Hugging Face hub" in told[4]
        assert "or hub:owner/name" in told[5]
        # Without a network what was downloaded is enough.
        assert ask("hub:some/chats/test.jsonl", endpoint="http://127.0.0.1:9") == ["test.jsonl"]
