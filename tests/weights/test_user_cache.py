"""The user's cache: compiled programs are kept in it, tries converted once."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest
import tokenizers
from conftest import GOLDEN, NAMES
from refusals import report
from tokenizers import models

from dart_jax.model import DEMO
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import user_cache

VOCAB = 512
TRIE = GOLDEN / NAMES[0] / "ngram" / "small.trie"
COMPILED = "jax_compilation_cache_dir"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The directory, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dart_jax"


@pytest.fixture
def settings():
    """Sets JAX's own settings for one test."""
    names = (COMPILED, "jax_enable_compilation_cache", "jax_compilation_cache_max_size")
    names += ("jax_persistent_cache_min_compile_time_secs",)
    before = {name: getattr(jax.config, name) for name in names}

    def change(**values):
        for name, value in values.items():
            jax.config.update(name, value)

    yield change
    change(**before)


def test_compiled_programs_are_kept(cache, settings):
    """What only the user may write; what a killed process left incomplete is removed."""
    settings(jax_compilation_cache_dir=None)
    user_cache.enable_compilation_cache()
    directory = cache / "compiled"
    assert jax.config.jax_compilation_cache_dir == str(directory)
    assert directory.stat().st_mode & 0o077 == 0
    for name in ("whole-cache", "whole-atime", "half-cache"):
        (directory / name).touch()
    settings(jax_compilation_cache_dir=None)
    user_cache.enable_compilation_cache()
    assert sorted(path.name for path in directory.glob("*-*")) == ["whole-atime", "whole-cache"]


@pytest.mark.parametrize("enabled", [True, False])
def test_what_the_user_configured_stays(cache, settings, enabled):
    own = "own" if enabled else None
    settings(jax_compilation_cache_dir=own, jax_enable_compilation_cache=enabled)
    user_cache.enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == own
    assert not cache.exists()


def test_a_directory_that_cannot_be_written_is_one_warning(cache, settings, caplog):
    cache.parent.write_text("a file is in the way")
    settings(jax_compilation_cache_dir=None)
    user_cache.enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None
    [message] = caplog.messages
    assert message.startswith("compiled programs are not kept: cannot write ")


@pytest.fixture(scope="module")
def tokenizer():
    """As many tokens as the golden tries were counted with."""
    return Tokenizer(tokenizers.Tokenizer(models.BPE({f"t{n}": n for n in range(VOCAB)}, [])))


def test_a_trie_is_converted_once(cache, tokenizer, capsys):
    """For the tokenizer's vocabulary, though the target has more rows."""
    ngram = user_cache.load_ngram(TRIE, tokenizer, VOCAB + 64)
    corpus, fingerprint = np.load(TRIE.parents[1] / "ngram_corpus.npy"), tokenizer_fingerprint
    expected = NgramModel.count(corpus, vocab_size=VOCAB, fingerprint=fingerprint(tokenizer))
    assert ngram.file.tobytes() == expected.file.tobytes()
    assert "converting small.trie once" in capsys.readouterr().err
    [made] = (cache / "ngram").glob("*.dng")
    before = made.stat()
    assert user_cache.converted_trie(TRIE, tokenizer) == made
    assert made.stat() == before
    assert capsys.readouterr().err == ""


CONVERT = f"""
    from pathlib import Path
    from tokenizers import Tokenizer, models
    from dart_jax.weights.user_cache import converted_trie
    tokenizer = Tokenizer(models.BPE({{f"t{{n}}": n for n in range({VOCAB})}}, []))
    print("begin", flush=True)
    print(converted_trie(Path({str(TRIE)!r}), tokenizer))
"""


@pytest.mark.long
def test_two_processes_at_once_and_one_that_is_killed(cache, tokenizer):
    command = [sys.executable, "-c", textwrap.dedent(CONVERT)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "begin\n"
    time.sleep(0.1)
    processes[0].send_signal(signal.SIGKILL)
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    [made] = {output.strip() for output in outputs[1:]}
    assert NgramModel.load(made).vocab_size == VOCAB
    assert str(user_cache.converted_trie(TRIE, tokenizer)) == made
    assert {path.suffix for path in (cache / "ngram").iterdir()} <= {".dng", ".lock"}


def test_a_full_disk_is_one_line(cache, tokenizer):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        message = report(user_cache.converted_trie, TRIE, tokenizer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert message.startswith(f"cannot convert {TRIE}")
    assert {path.suffix for path in (cache / "ngram").iterdir()} <= {".lock"}


def test_tries_and_files_that_do_not_fit(cache, tokenizer, tmp_path):
    trie = tmp_path / "a.trie"
    trie.write_bytes(TRIE.read_bytes()[:-7])
    small = Tokenizer(tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, [])))
    for path, coder, message in (
        (trie, tokenizer, "a.trie "),
        (TRIE, small, "small.trie "),
        (DEMO / "ngram.dng", tokenizer, "ngram.dng was counted with another tokenizer"),
        ("./none.dng", tokenizer, "none.dng; pass one that exists"),
    ):
        assert message in report(user_cache.load_ngram, path, coder, VOCAB)
    assert not list(cache.rglob("*.dng"))


def test_our_own_format_is_read_in_place(cache):
    tokenizer = Tokenizer.load(DEMO / "target")
    ngram = user_cache.load_ngram(DEMO / "ngram.dng", tokenizer, tokenizer.vocab_size)
    assert ngram.fingerprint == tokenizer_fingerprint(tokenizer)
    assert not cache.exists()
