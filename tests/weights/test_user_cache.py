"""The user's cache: compiled programs found again, tries converted once."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import tokenizers
from conftest import GOLDEN, NAMES
from tokenizers import models

from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import user_cache

VOCAB = 512
TRIE = GOLDEN / NAMES[0] / "ngram" / "small.trie"

COMPILE = """
    import jax  # before dart_jax, which chooses what XLA prints
    import dart_jax
    import numpy as np
    from jax import monitoring
    from dart_jax.weights.user_cache import enable_compilation_cache

    events = []
    monitoring.register_event_listener(lambda event, **more: events.append(event))
    enable_compilation_cache()
    if jax.config.jax_compilation_cache_dir:
        enable_compilation_cache()  # changes nothing

    @jax.jit
    def slow(x):
        for i in range(40):
            x = jax.numpy.sin(x @ x) * i + jax.lax.top_k(x, 3)[0].sum()
        return x

    print(slow(np.ones((4, 4), np.float32)).shape)
    print(jax.config.jax_compilation_cache_dir)
    for kind in ("hits", "misses"):
        print(events.count(f"/jax/compilation_cache/cache_{kind}"))
"""


@pytest.fixture
def environment(tmp_path):
    """For processes with a cache of their own."""
    settings = {k: v for k, v in os.environ.items() if "COMPILATION_CACHE" not in k}
    # Cache the program however fast the machine compiles it.
    always = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return settings | always | {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The directory, for this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dart_jax"


def start(code, environment, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def finish(process):
    """Its lines; it must end well."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out.splitlines(), err


def compile_slow(environment):
    (shape, directory, hits, misses), err = finish(start(COMPILE, environment))
    assert shape == "(4, 4)"
    return directory, int(hits), int(misses), err


# Compiled programs


def test_the_second_process_finds_what_the_first_compiled(environment, tmp_path):
    expected = str(tmp_path / "cache" / "dart_jax" / "compiled")
    assert compile_slow(environment) == (expected, 0, 1, "")
    assert compile_slow(environment) == (expected, 1, 0, "")
    assert os.stat(expected).st_mode & 0o077 == 0


@pytest.mark.long
def test_what_the_user_configured_stays(environment, tmp_path):
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")}
    assert compile_slow(environment | own)[0] == str(tmp_path / "own")
    assert compile_slow(environment | {"JAX_ENABLE_COMPILATION_CACHE": "0"})[0] == "None"
    assert not (tmp_path / "cache").exists()


def test_a_directory_that_cannot_be_written_is_one_warning(environment, tmp_path):
    (tmp_path / "cache").write_text("a file is in the way")
    directory, _, _, err = compile_slow(environment)
    assert directory == "None"
    assert err.startswith("compiled programs are not kept: cannot write ")
    assert err.count("\n") == 1


# Converted tries


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
def test_two_processes_at_once(environment):
    processes = [start(CONVERT, environment) for _ in range(2)]
    results = [finish(process) for process in processes]
    assert results[0][0] == results[1][0]
    assert NgramModel.load(results[0][0][1]).vocab_size == VOCAB
    assert sorted("converting" in err for _, err in results) == [False, True]


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3])
def test_files_of_a_killed_process_are_ignored(environment, cache, tokenizer, seconds):
    process = start(CONVERT, environment)
    with process:
        assert process.stdout.readline() == "begin\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
    assert NgramModel.load(user_cache.converted_trie(TRIE, tokenizer)).vocab_size == VOCAB
    assert {path.suffix for path in (cache / "ngram").iterdir()} <= {".dng", ".lock"}


def test_a_full_disk_is_one_line(environment, cache):
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "from dart_jax.errors import UserError\ntry:\n"
    ) + textwrap.indent(textwrap.dedent(CONVERT), "    ")
    code += "except UserError as error:\n    print('error:', error)\n"
    (_, message), _ = finish(start(code, environment))
    assert message.startswith(f"error: cannot convert {TRIE}")
    assert [path.suffix for path in (cache / "ngram").iterdir()] in ([".lock"], [])


def test_incomplete_tries(cache, tokenizer, tmp_path):
    trie = tmp_path / "a.trie"
    trie.write_bytes(TRIE.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"a\.trie "):
        user_cache.load_ngram(trie, tokenizer, VOCAB)
    small = Tokenizer(tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, [])))
    with pytest.raises(UserError, match=r"small\.trie "):
        user_cache.load_ngram(TRIE, small, VOCAB)
    assert not list((cache / "ngram").glob("*.dng"))


# Our own files


def test_our_own_format_is_read_in_place(cache):
    tokenizer = Tokenizer.load(DEMO / "target")
    ngram = user_cache.load_ngram(DEMO / "ngram.dng", tokenizer, tokenizer.vocab_size)
    assert ngram.fingerprint == tokenizer_fingerprint(tokenizer)
    assert not cache.exists()


def test_another_tokenizer(tokenizer):
    with pytest.raises(UserError, match=r"ngram\.dng was counted with another tokenizer"):
        user_cache.load_ngram(DEMO / "ngram.dng", tokenizer, VOCAB)
    with pytest.raises(UserError, match=r"no file .*none\.dng; pass one that exists"):
        user_cache.load_ngram("./none.dng", tokenizer, VOCAB)
