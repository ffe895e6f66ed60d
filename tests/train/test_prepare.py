"""Preparing a data set: once, atomically, and again when anything changes."""

import collections
import dataclasses
import json
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
from train.data.packed_dataset import PackedBatches, draft_vocabulary
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
    for record in records(60):
        prompt = tokenizer.encode_chat([{"role": "user", "content": record["question"]}])
        (whole,) = [t for t, _ in found if list(t[: len(prompt)]) == prompt]
        assert tokenizer.decode(whole[len(prompt) :]) == record["answer"] + "\n"
    batch = training.batch(np.array([1, 0, 1]))
    assert [array.dtype for array in batch[:3]] == [np.int32, np.int32, bool]
    assert [array.shape for array in batch[:3]] == [(3, 128)] * 3
    np.testing.assert_array_equal(batch.tokens[0], batch.tokens[2])
    assert isinstance(training.tokens, np.memmap)


def test_it_is_made_once(config, make, tmp_path, monkeypatch):
    """And again where anything changes; the fingerprint is that of the rows."""
    first = make(config)
    path = write(tmp_path / "other.jsonl", records(60))
    changes = {"context": 64}, {"loss_on": "all"}, {"limit": 50}, {"held_out": 0.2}
    same, *others = [
        make(dataclasses.replace(config, **change)).training
        for change in ({"data": (str(path),)}, *changes)
    ]
    others.append(make(config, vocab_size=70_000).training)
    assert others[-1].tokens.dtype == np.uint32
    assert same.fingerprint == first.training.fingerprint
    fingerprints = {each.fingerprint for each in (same, *others)}
    assert len(fingerprints) == 6
    monkeypatch.setattr(dataset, "_make", lambda *arguments: pytest.fail("made again"))
    again = make(config)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
    monkeypatch.undo()
    write(tmp_path / "data.jsonl", records(61))
    assert make(config).training.fingerprint not in fingerprints


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


def test_what_is_told(config, make, tmp_path, capfd):
    """Of a share of nothing, and of bad records."""
    assert not make(dataclasses.replace(config, held_out=1e-9)).held_out.rows
    assert "leaves no documents to evaluate the drafter on" in capfd.readouterr().err
    values = [*records(3), {"a": 1}, {"tokens": [9, VOCABULARY], "prompt_length": 1}, *records(2)]
    path = write(tmp_path / "data.jsonl", values)
    with pytest.raises(UserError, match=r"data\.jsonl:4: .*it has the fields a;"):
        make(config)
    training, _ = make(dataclasses.replace(config, skip_bad=True))
    assert sum(documents(training).values()) == 5
    assert f"skipped 2 bad records, the first: {path}:4: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"data": ("missing",)}, "no file or directory missing"),
        ({"context": 1}, "context must be at least 2"),
        ({"context": 257}, "--context 257 is beyond the target's 256 positions"),
        ({"held_out": 2.5}, "held-out must be a fraction or a number of records, got 2.5"),
        ({"held_out": float("nan")}, "held-out must be a fraction or a number of records, got nan"),
        ({"chat_template_kwargs": "{"}, "chat-template-kwargs is not JSON"),
        ({"chat_template_kwargs": "[]"}, "chat-template-kwargs must be a JSON object"),
        ({"held_out": 60}, "is left to train on; --held-out 60 takes all 60 documents"),
        ({"context": 2}, "nothing in .* is left to train on"),
    ],
)
def test_errors(config, make, changes, match):
    with pytest.raises(UserError, match=match):
        make(dataclasses.replace(config, **changes))


def test_the_context_fits_the_target(config, make):
    unset = dataclasses.replace(config, context=None)
    assert make(unset, longest=100).training.context == 100
    assert make(unset, longest=8000).training.context == 6400
    assert make(config, longest=128).training.context == 128


def test_no_room(config, make, tmp_path):
    """It is told in one line."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*: File too large; free .* another"):
            make(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert sum(documents(make(config).training).values()) == 60
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file"):
        make(config, "file")


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
    counts = np.bincount(training.tokens[training.supervised], minlength=VOCABULARY)
    ranked = sorted(range(VOCABULARY), key=lambda token: (-counts[token], token))
    for size in (1, 7, (counts > 0).sum(), VOCABULARY):
        ids = draft_vocabulary(training, size)
        assert ids.dtype == np.int32
        assert ids.tolist() == sorted(ranked[:size])
    with pytest.raises(UserError, match=rf"must have 1\.\.{VOCABULARY} tokens, got 0"):
        draft_vocabulary(training, 0)


@pytest.mark.long
def test_data_of_the_hub(tmp_path):
    """In a separate process, which reads the hub's settings."""
    program = """
import sys
from dart_jax.data.records import find_files
from dart_jax.errors import UserError
for name in sys.argv[1:]:
    try:
        print(*(path.name for path in find_files([f"hub:{name}"])))
    except UserError as error:
        print(error)
"""
    files = ("README.md", "data/train-0.jsonl", "data/train-1.jsonl", "test.jsonl")
    names = ("/data/*-1*", "/data", "", "/x")
    with local_hub.serve() as served:
        served.repositories["datasets/some/chats"] = {name: name.encode() for name in files}

        def ask(*names, endpoint=served.address):
            environment = local_hub.environment(tmp_path / "home", endpoint)
            command = [sys.executable, "-c", program, *names]
            return subprocess.check_output(command, text=True, env=environment).splitlines()

        told = ask(*(f"some/chats{name}" for name in names), "some/other", "chats")
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
        assert ask("some/chats/test.jsonl", endpoint="http://127.0.0.1:9") == ["test.jsonl"]
