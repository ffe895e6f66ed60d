"""Counts an n-gram model of a corpus, from its files to the written model."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from pathlib import Path

import duckdb

from dart_jax.data.contents import NoFormError
from dart_jax.data.records import Skipped, find_files, refuse, without
from dart_jax.errors import UserError
from dart_jax.files import check_writable
from dart_jax.machine import available_cores, available_memory
from dart_jax.memory import parse_memory
from dart_jax.ngram import NgramBuilder, NgramModel, WindowLayout, runs, tokenizer_fingerprint
from dart_jax.progress import progress_bars
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_eos
from train.counting.config import NgramConfig
from train.counting.pipeline import Counting, Encoding, divide, least_memory
from train.counting.workers import Workers
from train.data.config import parse_template_kwargs
from train.data.examples import read_all
from train.run import work_directory

_VERSION = 3  # of the work directory's format


def run(config: NgramConfig) -> str:
    """Counts and writes the file; returns a summary for the user. Raises UserError if a setting or
    the data cannot be used."""
    began = time.perf_counter()
    if not config.out.parent.is_dir():
        raise UserError(f"no directory {config.out.parent} for --out; make it first")
    check_writable(config.out)
    work = config.work or config.out.with_name(config.out.name + ".work")
    files = without(find_files(config.data), (work, config.out))
    template_kwargs = parse_template_kwargs(config.chat_template_kwargs)
    tokenizer = load(config.tokenizer)
    size = sum(path.stat().st_size for path in files)
    eos = None if config.no_eos else eos_of(tokenizer, config.eos_token)
    layout = WindowLayout(config.order, tokenizer.vocab_size)
    skipped = Skipped()

    def bad(error: UserError) -> None:
        if isinstance(error, NoFormError):
            error = UserError(f"{error}, or name the field with --field")
        (skipped if config.skip_bad else refuse)(error)

    encoder = f"{tokenizer.backend.to_str()}{tokenizer.chat_template or ''}".encode()
    settings = {
        "version": _VERSION,
        "--tokenizer": hashlib.sha256(encoder).hexdigest(),
        "--field": config.field,
        "--chat-template-kwargs": template_kwargs,
        "--eos": eos,
        "--order": config.order,
    }
    memory = available_memory() // 2 if config.memory is None else parse_memory(config.memory)
    number = config.workers or default_workers(memory)
    reading, sorting = divide(memory, number)
    with Workers(number) as workers, work_directory.locked(work), progress_bars() as progress:
        examples = read_all(files, config.limit, bad, field=config.field, memory=reading)
        done = len(runs.read_stats(work))
        result = f"counts of {done:,} units" if done else ""
        work_directory.check_settings(work, settings, result=result)
        try:
            source = tokenizer.directory or Path(config.tokenizer).expanduser()
            encoding = Encoding(source, json.dumps(template_kwargs), eos)
            counting = Counting(work, layout, sorting, workers, progress, skipped, config.skip_bad)
            totals = counting.count(examples, size, encoding)
            with tempfile.TemporaryDirectory(dir=work, prefix="tmp-") as scratch:
                builder = NgramBuilder(layout, scratch)
                for part in counting.merge(totals):
                    builder.add(*runs.read_run(part, layout))
                builder.write(config.out, fingerprint=tokenizer_fingerprint(tokenizer.backend))
        except (duckdb.Error, OSError, RuntimeError) as error:
            reason = str(error).split("\n", 1)[0]
            raise UserError(
                f"cannot continue in {work}: {reason}; free disk space or give more --memory, and "
                "run again to resume"
            ) from error
        if not config.keep_work:
            work_directory.remove(work)
    sizes, size = NgramModel.load(config.out).sizes, config.out.stat().st_size
    seconds = time.perf_counter() - began
    return (
        f"{totals.documents:,} documents, {totals.tokens:,} tokens, "
        f"{' + '.join(f'{each:,}' for each in sizes)} n-grams, {size:,} bytes "
        f"({size / max(1, sum(sizes)):.2f} per n-gram), {seconds:.1f} s, "
        f"{totals.new / seconds:,.0f} tokens/s{skipped}"
    )


def default_workers(memory: int) -> int:
    """Returns the number of workers: one per core, as far as `memory` bytes allow."""
    workers = available_cores()
    fitting = (n for n in range(workers, 1, -1) if least_memory(n) <= memory)
    return next(fitting, 1)


def load(source: str) -> Tokenizer:
    """Reads a `tokenizer.json`, a directory, or a repository of the Hugging Face hub; raises
    UserError if there is no tokenizer, or it is damaged."""
    path = Path(source).expanduser()
    return Tokenizer.load(path if path.is_file() else hub.resolve(source, patterns=hub.TOKENIZER))


def eos_of(tokenizer: Tokenizer, token: str | None) -> int:
    """Returns the id of `token`, or the tokenizer's own end-of-sequence id if it is None; raises
    UserError if there is no such token."""
    if token is not None:
        eos = tokenizer.backend.token_to_id(token)
        if eos is None:
            raise UserError(f"--eos-token: the tokenizer has no token {token!r}")
        return eos
    eos = None if tokenizer.wrapped is None else tokenizer.wrapped.eos_token_id
    if eos is None and tokenizer.directory is not None:
        eos = next(iter(load_eos(tokenizer.directory)), None)
    if eos is None:
        raise UserError(
            "the tokenizer names no token that ends a document; pass --eos-token or --no-eos"
        )
    return eos
