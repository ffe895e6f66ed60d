"""The user's cache: compiled programs and converted n-gram models, kept between runs."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import filelock
import jax

from dart_jax.files import make_once, user_cache
from dart_jax.ngram.fingerprint import check_tokenizer
from dart_jax.ngram.model import NgramModel, is_ngram_file
from dart_jax.ngram.reference import convert_reference
from dart_jax.text.fingerprint import Vocabulary, tokenizer_fingerprint, vocabulary_size
from dart_jax.weights import hub

_logger = logging.getLogger(__name__)

# A program is read from the cache in some 10 ms; those that prepare weights compile in 100.
_MIN_COMPILE_TIME = 0.03  # seconds
_COMPILED_BYTES = 2 * 2**30  # at most; the least recently used programs are evicted first


def enable_compilation_cache() -> None:
    """Makes JAX cache compiled programs for later processes.

    Has no effect if JAX's own settings (`jax_compilation_cache_dir`,
    `jax_enable_compilation_cache`) already configure or disable a cache. If the directory cannot be
    written, logs a warning of one line and caches nothing. Processes and machines may share the
    cache: JAX distinguishes processors.
    """
    config: Any = jax.config  # its type stubs lack some settings
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return
    directory = user_cache() / "compiled"
    try:
        # Private: who can write to it can run code.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_incomplete(directory)
    except OSError as error:
        reason = error.strerror or error
        _logger.warning("compiled programs are not kept: cannot write %s (%s)", directory, reason)
        return
    config.update("jax_compilation_cache_dir", str(directory))
    if config.jax_compilation_cache_max_size == -1:
        config.update("jax_compilation_cache_max_size", _COMPILED_BYTES)
    seconds = min(config.jax_persistent_cache_min_compile_time_secs, _MIN_COMPILE_TIME)
    config.update("jax_persistent_cache_min_compile_time_secs", seconds)


def converted_trie(path: Path, tokenizer: Vocabulary) -> Path:
    """Returns the n-gram file for a trie of the reference; converts it once and caches the result.

    Processes that need the same trie wait for the one that converts it. `tokenizer` is the one that
    it was counted with. Its size counts, not the target's, which may have more embeddings: the
    trie's ids are the tokenizer's.

    Raises:
      UserError: as `convert_reference`, or the cache cannot be written.
    """
    fingerprint = tokenizer_fingerprint(tokenizer)
    path = path.resolve()  # in the hub's cache, the name is a hash of the content
    stat = path.stat()
    identity = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode() + fingerprint
    name = hashlib.sha256(identity).hexdigest()[:24]
    out = user_cache() / "ngram" / f"{name}.dng"

    def write(part: Path) -> None:
        print(f"converting {path.name} once, into {out}", file=sys.stderr)
        size = vocabulary_size(tokenizer)
        convert_reference(path, part, vocab_size=size, fingerprint=fingerprint)

    return make_once(out, write)


def load_ngram(
    name: str | os.PathLike[str],
    tokenizer: Vocabulary,
    vocab_size: int,
    *,
    token: str | bool | None = None,
) -> NgramModel:
    """Loads an n-gram model, or a trie of the reference, from a file or from the hub.

    Args:
      name: as for `hub.resolve_file`, and so is `token`.
      tokenizer: the target's.
      vocab_size: the target's vocabulary size, which may exceed the tokenizer's.

    Raises:
      UserError: there is no such file, it is damaged, or it was made with another tokenizer.
    """
    path = hub.resolve_file(name, token=token)
    if not is_ngram_file(path):
        path = converted_trie(path, tokenizer)
    ngram = NgramModel.load(path)
    check_tokenizer(ngram, tokenizer, str(path), vocab_size)
    return ngram


def _remove_incomplete(directory: Path) -> None:
    """Removes cache entries that a killed process left incomplete, on which JAX would always fail.

    JAX writes an entry's access time after the entry itself and holds this lock meanwhile.
    """
    with filelock.FileLock(directory / ".lockfile", timeout=10):
        for entry in directory.glob("*-cache"):
            if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
                entry.unlink(missing_ok=True)
