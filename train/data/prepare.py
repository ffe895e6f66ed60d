"""Prepares a drafter's training data: encoded and packed once, then memory-mapped."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import heapq
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dart_jax.data.records import Skipped, find_files, fingerprint, refuse, without
from dart_jax.errors import UserError
from dart_jax.files import make_once
from dart_jax.progress import progress_bars
from dart_jax.text.tokenizer import Tokenizer
from train.data.config import DataConfig, parse_template_kwargs
from train.data.encoding import Encoder
from train.data.examples import LONGEST, batched, read_all
from train.data.packed_dataset import PackedDataset, Writer

_VERSION = 3  # of the written format, and of what is read from records
_CONTEXT = 6400  # the paper's (section 4.1)
_ENCODED = 4 * LONGEST  # characters encoded at a time


class Prepared(NamedTuple):
    """A data set's splits: rows to train on, at least one, and for evaluation, possibly none."""

    training: PackedDataset
    held_out: PackedDataset


def prepare(
    config: DataConfig, tokenizer: Tokenizer, directory: Path, *, vocab_size: int, longest: int
) -> Prepared:
    """Encodes and packs the data into a directory in `directory`, unless that is already done, also
    by another process; says on standard error what was packed and what was skipped. `vocab_size`
    and `longest` are the target's tokens and positions, which limit the context. Raises UserError
    if the data cannot be used, or the directory cannot be written."""
    files = without(find_files(config.data), [directory])
    context = config.context or min(_CONTEXT, longest)
    if context > longest:
        raise UserError(f"--context {context} is beyond the target's {longest} positions; lower it")
    config = dataclasses.replace(config, context=context)
    name = _digest(config, files, tokenizer, vocab_size)
    template_kwargs = parse_template_kwargs(config.chat_template_kwargs)
    eos = None if tokenizer.wrapped is None else tokenizer.wrapped.eos_token_id
    encoder = Encoder(tokenizer, vocab_size, config.loss_on, template_kwargs, eos)
    path = make_once(
        directory / "data" / name,
        lambda part: _make(config, files, encoder, part),
        cure="use another directory, and run again",
    )
    return _load(path)


def _digest(
    config: DataConfig, files: Sequence[Path], tokenizer: Tokenizer, vocab_size: int
) -> str:
    """Identifies everything that the rows depend on."""
    options = dataclasses.asdict(config)
    del options["data"]
    settings = {
        "version": _VERSION,
        "files": fingerprint(files),
        "tokenizer": tokenizer.backend.to_str(),
        "template": tokenizer.chat_template,
        "vocab_size": vocab_size,
        **options,
    }
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]


def _load(directory: Path) -> Prepared:
    return Prepared(*(PackedDataset.load(directory, name) for name in Prepared._fields))


def _make(config: DataConfig, files: Sequence[Path], encoder: Encoder, directory: Path) -> None:
    skipped = Skipped()
    bad = skipped if config.skip_bad else refuse
    size = sum(path.stat().st_size for path in files)
    directory.mkdir()
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(progress_bars())
        shape = config.context or _CONTEXT, encoder.vocab_size
        training, held_out = (
            stack.enter_context(contextlib.closing(Writer(directory, name, *shape)))
            for name in Prepared._fields
        )
        bar = progress.add_task("prepare", total=size, note="")
        below = _threshold(config, files)
        for examples in batched(read_all(files, config.limit, bad), _ENCODED):
            for example, document in zip(examples, encoder.encode(examples, bad=bad), strict=True):
                if document is not None:
                    (held_out if example.digest < below else training).add(document)
            rows = training.packer.statistics.rows
            progress.update(bar, completed=examples[-1].read, note=f"{rows:,} rows")
        training.finish()
        held_out.finish()
        if not training.packer.statistics.rows:
            why = f"; the first that was skipped: {skipped.first}" if skipped.count else ""
            if kept := held_out.packer.statistics.documents:
                why = f"; --held-out {config.held_out:g} takes all {kept:,} documents; lower it"
            raise UserError(f"nothing in {', '.join(config.data)} is left to train on{why}")
        progress.update(bar, completed=size)
    prepared = _load(directory)
    lines = [f"{f.replace('_', ' ')}: {part}" for f, part in prepared._asdict().items()]
    if config.held_out and not prepared.held_out.rows:
        some = max(1, min(8, prepared.training.statistics.documents // 4))
        lines.append(
            f"--held-out {config.held_out:g} leaves no documents to evaluate the drafter on; "
            f"--held-out {some} would hold out about {some}"
        )
    if skipped.count:
        lines.append(f"skipped {skipped.count:,} bad records, the first: {skipped.first}")
    for line in lines:
        progress.console.print(line, highlight=False, soft_wrap=True)


def _threshold(config: DataConfig, files: Sequence[Path]) -> int:
    """Returns the digest below which records are held out."""
    if config.held_out < 1:
        return int(config.held_out * 2**64)
    digests = (example.digest for example in read_all(files, config.limit, Skipped()))
    lowest = heapq.nsmallest(int(config.held_out), set(digests))
    return lowest[-1] + 1 if lowest else 0
