"""What is kept between runs: compiled programs and converted n-gram models, a directory a user."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import filelock
import jax
import platformdirs

from dart_jax.errors import UserError
from dart_jax.ngram.fingerprint import check_tokenizer
from dart_jax.ngram.model import NgramModel, is_ngram_file
from dart_jax.ngram.reference import convert_reference
from dart_jax.text.fingerprint import Vocabulary, tokenizer_fingerprint, vocabulary_size
from dart_jax.weights import hub

_logger = logging.getLogger(__name__)

# Programs that compile faster are hardly faster to read.
_WORTH_KEEPING = 0.3  # seconds
_COMPILED_BYTES = 2 * 2**30  # at most; what was not used for the longest time goes first


def user_cache() -> Path:
    """The directory: `~/.cache/dart_jax` on Linux, below XDG_CACHE_HOME if that is set."""
    return platformdirs.user_cache_path("dart_jax", appauthor=False)


def enable_compilation_cache() -> None:
    """Makes JAX keep what it compiles, for later processes.

    Changes nothing where a cache is configured or switched off already, by JAX's own settings
    (`jax_compilation_cache_dir`, `jax_enable_compilation_cache`). Where the directory cannot be
    written one line of warning says so, and nothing is kept. Many processes may share the cache,
    and machines too: JAX tells processors apart.
    """
    config: Any = jax.config  # its types do not know all settings
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return
    directory = user_cache() / "compiled"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # whoever writes it runs code
        _remove_torn(directory)
    except OSError as error:
        reason = error.strerror or error
        _logger.warning("compiled programs are not kept: cannot write %s (%s)", directory, reason)
        return
    config.update("jax_compilation_cache_dir", str(directory))
    if config.jax_compilation_cache_max_size == -1:
        config.update("jax_compilation_cache_max_size", _COMPILED_BYTES)
    seconds = min(config.jax_persistent_cache_min_compile_time_secs, _WORTH_KEEPING)
    config.update("jax_persistent_cache_min_compile_time_secs", seconds)


def converted_trie(path: Path, tokenizer: Vocabulary) -> Path:
    """The n-gram file of a reference's trie, converted once and then kept.

    Processes that want the same trie wait for the one that converts it.

    Args:
      path: of the trie.
      tokenizer: the one that it was counted with. Targets may have more embeddings than that has
        tokens; the trie's ids are the tokenizer's.

    Raises:
      UserError: as `convert_reference`, or the cache cannot be written.
    """
    fingerprint = tokenizer_fingerprint(tokenizer)
    path = path.resolve()  # in the hub's cache, named by its content
    stat = path.stat()
    identity = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode() + fingerprint
    name = hashlib.sha256(identity).hexdigest()[:24]
    directory = user_cache() / "ngram"
    out, work = directory / f"{name}.dng", directory / f"{name}.work"
    if out.is_file():
        return out
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(directory / f"{name}.lock"):
            if out.is_file():
                return out
            shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
            print(f"converting {path.name} once, into {out}", file=sys.stderr)
            try:
                convert_reference(
                    path,
                    work / "whole",
                    vocab_size=vocabulary_size(tokenizer),
                    fingerprint=fingerprint,
                )
                os.replace(work / "whole", out)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"cannot convert {path} in {directory}: {error}; free some space, or convert it with "
            "`python -m dart_jax.ngram convert` to where there is some"
        ) from error
    return out


def load_ngram(
    name: str | os.PathLike[str],
    tokenizer: Vocabulary,
    vocab_size: int,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
) -> NgramModel:
    """An n-gram model, or a reference's trie, from a file or from the hub.

    Args:
      name: see `hub.resolve_file`.
      tokenizer: the target's.
      vocab_size: the target's, which may be larger than the tokenizer's.
      revision: see `hub.resolve`.
      token: see `hub.resolve`.

    Raises:
      UserError: there is none, it is damaged, or it was made with another tokenizer.
    """
    path = hub.resolve_file(name, revision=revision, token=token)
    if not is_ngram_file(path):
        path = converted_trie(path, tokenizer)
    ngram = NgramModel.load(path)
    check_tokenizer(ngram, tokenizer, str(name), vocab_size)
    return ngram


def _remove_torn(directory: Path) -> None:
    """Removes what a killed process left behind of an entry, which JAX would stumble over for ever.

    JAX writes an entry's time after the entry itself, and holds this lock meanwhile.
    """
    with filelock.FileLock(directory / ".lockfile", timeout=10):
        for entry in directory.glob("*-cache"):
            if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
                entry.unlink(missing_ok=True)
