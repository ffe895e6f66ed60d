"""`python -m dart_jax.ngram`: what a person types, and what is printed."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dart_jax.model import DEMO
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.ngram.__main__ import main
from dart_jax.ngram.device_table import device_table
from dart_jax.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"


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
    table, _ = device_table(NgramModel.load(tmp_path / "exact.dng"))
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


def test_convert_a_trie(run, tmp_path):
    golden = GOLDEN / "qwen3-tied"
    run("convert", golden / "ngram/small.trie", tmp_path / "a.dng", "--vocab-size", 512)
    counted = NgramModel.count(np.load(golden / "ngram_corpus.npy"), vocab_size=512)
    assert (tmp_path / "a.dng").read_bytes() == counted.file.tobytes()


def test_convert_to_a_smaller_file(run, tmp_path):
    text = run("convert", DEMO / "ngram.dng", tmp_path / "a.dng", "--min-counts", 1, 2, 2)
    smaller, whole = NgramModel.load(tmp_path / "a.dng"), NgramModel.load(DEMO / "ngram.dng")
    assert not smaller.exact
    assert smaller.fingerprint == whole.fingerprint
    assert smaller.sizes == tuple(
        int(np.count_nonzero(level.count >= least))
        for level, least in zip(whole.levels, (1, 2, 2), strict=True)
    )
    assert f"{sum(smaller.sizes):,} n-grams" in text


@pytest.mark.parametrize("lossy", [False, True])
def test_convert_to_another_tokenizer(run, fails, tmp_path, lossy):
    """Nothing but the fingerprint and the header's checksum changes; ids that occur are checked."""
    source, out, other = tmp_path / "a.dng", tmp_path / "b.dng", tmp_path / "other"
    fingerprint = tokenizer_fingerprint(Tokenizer.load(DEMO / "target"))
    documents = [[5, 6, 7, 5, 6], [5, 6]]
    model = NgramModel.count(documents, vocab_size=4096, fingerprint=fingerprint)
    if lossy:
        model.lossy(source, min_counts=(1, 2, 2))
    else:
        model.save(source)
    assert np.flatnonzero(NgramModel.load(source).unigrams).tolist() == [5, 6, 7]
    content = json.loads(
        shutil.copytree(DEMO / "target", other).joinpath("tokenizer.json").read_text()
    )
    vocab = content["model"]["vocab"]
    names = {id: name for name, id in vocab.items()}
    vocab[names[4094]], vocab[names[4095]] = 4095, 4094
    (other / "tokenizer.json").write_text(json.dumps(content))
    run("convert", source, out, "--tokenizer", other, "--counted-with", DEMO / "target")
    assert "give both" in fails("convert", source, out, "--tokenizer", other)
    before, after = source.read_bytes(), out.read_bytes()
    assert (
        before[:168] + before[200:264] + before[272:] == after[:168] + after[200:264] + after[272:]
    )
    assert NgramModel.load(out).fingerprint == tokenizer_fingerprint(Tokenizer.load(other))
    vocab[names[5]], vocab[names[8]] = 8, 5
    (other / "tokenizer.json").write_text(json.dumps(content))
    error = fails("convert", source, out, "--tokenizer", other, "--counted-with", DEMO / "target")
    assert f"the token id 5 occurs in {source}, as {names[5]!r}, but is {names[8]!r}" in error
    error = fails("convert", out, source, "--tokenizer", other, "--counted-with", DEMO / "target")
    assert "was not counted with the tokenizer of" in error
    assert "--counted-with is for n-gram files" in fails(
        "convert", GOLDEN / "qwen3-tied/ngram/small.trie", out, "--counted-with", other
    )


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
    assert "no file" in fails("convert", tmp_path / "none", out)
    assert "give --tokenizer or --vocab-size" in fails("convert", trie, out)
    assert "give --min-counts or --precision" in fails("convert", demo, out)
    assert "do not descend" in fails("convert", demo, out, "--min-counts", 2, 1, 1)
    assert "takes 3 numbers" in fails("convert", trie, out, "--vocab-size", 9, "--min-counts", 2)
    assert "precision must be" in fails("convert", trie, out, "--vocab-size", 9, "--precision", 0)
    assert "vocab-size must be" in fails("convert", trie, out, "--vocab-size", 10**11)
    assert "is a directory" in fails("convert", trie, tmp_path, "--vocab-size", 512)
    assert "precision must be 2 to 16" in fails("convert", demo, out, "--precision", 1)
    assert "memory must be written like" in fails(
        "convert", trie, out, "--vocab-size", 512, "--memory", "much"
    )
    assert not out.exists()
    main(["convert", str(demo), str(out), "--precision", "3"])
    assert "lost counts already" in fails("convert", out, out, "--precision", 2)
