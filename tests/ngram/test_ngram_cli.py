"""`dart-jax ngram`: what a person types, and what is printed."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from dart_jax.model import DEMO
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.ngram.device_table import device_table
from dart_jax.text.tokenizer import Tokenizer
from train.ngram import main

GOLDEN = Path(__file__).parents[1] / "golden"
RARE = ("--min-counts", 1, 2, 2)


@pytest.fixture
def run(capsys):
    """Runs the command; gives what it printed."""

    def run(*args):
        main([str(arg) for arg in args])
        return capsys.readouterr().out

    return run


@pytest.fixture
def fails(capsys):
    """Runs a command that must fail; gives its one line."""

    def fails(*args):
        with pytest.raises(SystemExit) as exit:
            main([str(arg) for arg in args])
        assert exit.value.code == 2
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].startswith("error: ")
        return lines[-1]

    return fails


def test_info_prints_the_header(run, tmp_path):
    documents = np.load(GOLDEN / "qwen3-tied" / "ngram_corpus.npy")
    model = NgramModel.count(documents, vocab_size=512)
    model.save(tmp_path / "exact.dng")
    text = run("info", tmp_path / "exact.dng", "--check")
    table = device_table(NgramModel.load(tmp_path / "exact.dng"))
    [on_device] = re.findall(r"on a device \(--search device\): ([\d.]+) MB", text)
    assert float(on_device) == pytest.approx(table.nbytes / 1e6, abs=0.06)
    assert f"counted from {documents.size:,} tokens of a vocabulary of 512" in text
    assert "counts: exact" in text
    assert all(f"{size:,}" in text for size in model.sizes)
    assert "every list is whole" in text

    model.lossy(tmp_path / "lossy.dng", min_counts=(1, 1, 2), precision=3)
    text = run("info", tmp_path / "lossy.dng")
    dropped = np.count_nonzero(model.levels[2].count < 2)
    assert "counts: rounded to 3 bits" in text
    assert f"{dropped:,}" in text


def test_query_prints_continuations(run):
    model = NgramModel.load(DEMO / "ngram.dng")
    tokenizer = Tokenizer.load(DEMO / "target").backend
    text = run("query", "    def __init__(", "--top", "3")
    context = tokenizer.encode("    def __init__(", add_special_tokens=False).ids
    short, long = model.continuations(np.array(context, np.int32))
    best = long.token[long.counts.argmax()]
    assert repr(tokenizer.decode([int(best)])) in text.splitlines()[4]
    assert f"{long.counts.max():,}" in text.splitlines()[4]
    assert f"{long.counts.max() / long.count:.4f}" in text.splitlines()[4]
    assert f"and {len(short.token) - 3:,} more" in text


def test_query_of_an_unseen_context(run, tmp_path):
    tokenizer = Tokenizer.load(DEMO / "target").backend
    size, fingerprint = tokenizer.get_vocab_size(), tokenizer_fingerprint(tokenizer)
    NgramModel.count([[1, 2]], vocab_size=size, fingerprint=fingerprint).save(tmp_path / "a.dng")
    assert "'x' was never seen" in run("query", "x", tmp_path / "a.dng")


def test_convert_a_trie(run, fails, tmp_path):
    """The file that its corpus gives, with the tokenizer's fingerprint."""
    golden, out = GOLDEN / "qwen3-tied", tmp_path / "a.dng"
    vocab = tokenizers.models.BPE({f"t{n}": n for n in range(512)}, [])
    tokenizers.Tokenizer(vocab).save(str(tmp_path / "tokenizer.json"))
    trie = golden / "ngram/small.trie"
    assert "takes 3 numbers" in fails("convert", trie, out, "--tokenizer", tmp_path, *RARE[:-1])
    run("convert", trie, out, "--tokenizer", tmp_path, "--memory", "400MB")
    fingerprint = tokenizer_fingerprint(Tokenizer.load(tmp_path))
    corpus = np.load(golden / "ngram_corpus.npy")
    counted = NgramModel.count(corpus, vocab_size=512, fingerprint=fingerprint)
    assert out.read_bytes() == counted.file.tobytes()


def test_convert_to_a_smaller_file(run, fails, tmp_path):
    text = run("convert", DEMO / "ngram.dng", tmp_path / "a.dng", *RARE)
    smaller, whole = NgramModel.load(tmp_path / "a.dng"), NgramModel.load(DEMO / "ngram.dng")
    assert not smaller.exact
    assert smaller.fingerprint == whole.fingerprint
    assert smaller.sizes == tuple(
        int(np.count_nonzero(level.count >= least))
        for level, least in zip(whole.levels, (1, 2, 2), strict=True)
    )
    assert f"{sum(smaller.sizes):,} n-grams" in text
    error = fails("convert", tmp_path / "a.dng", tmp_path / "b.dng", "--precision", 2)
    assert "lost counts already" in error


def test_bad_input_is_one_line(fails, tmp_path):
    trie, demo = GOLDEN / "qwen3-tied/ngram/small.trie", DEMO / "ngram.dng"
    other = shutil.copytree(DEMO / "target", tmp_path / "target")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["Ġfor"], vocab["Ġin"] = vocab["Ġin"], vocab["Ġfor"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    out = tmp_path / "out.dng"
    assert "no n-gram model at" in fails("info", tmp_path / "none")
    assert "it is not an n-gram file" in fails("info", trie)
    assert "another tokenizer" in fails("query", "x", "--tokenizer", other)
    assert "no file" in fails("query", "x", "--tokenizer", tmp_path)
    for words, message in (
        ((tmp_path / "none", out), "no file"),
        ((trie, out), "give --tokenizer"),
        ((trie, tmp_path, "--tokenizer", other), "is a directory"),
        ((trie, out, "--tokenizer", other, "--memory", "much"), "memory must be written like"),
        ((trie, out, "--tokenizer", other, "--precision", 0), "precision must be"),
        ((demo, out), "give --min-counts or --precision"),
        ((demo, out, "--min-counts", 2, 1, 1), "do not descend"),
        ((demo, out, "--precision", 1), "precision must be 2 to 16"),
        ((demo, out, *RARE, "--memory", "4GB"), "--tokenizer and --memory are for tries"),
    ):
        assert message in fails("convert", *words)
    assert not out.exists()
