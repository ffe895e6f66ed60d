"""The data a drafter is trained on: encoded and packed once, then read from the disk in place."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import heapq
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from dart_jax.data.records import Skipped, find_files, fingerprint, refuse, without
from dart_jax.errors import UserError
from dart_jax.programs.progress import progress_bars
from dart_jax.text.tokenizer import Tokenizer
from train.data.documents import LONGEST
from train.data.encoding import Encoder, LossOn, parse_template_kwargs
from train.data.examples import Chat, Completion, Content, Example, Text, Tokens, read_all
from train.data.packed_dataset import PackedDataset, Writer

_VERSION = 1  # of what is written
_MADE = "data"  # the directory's name; renamed into place when all of it is on the disk
_ENCODED = 4 * LONGEST  # characters encoded at a time


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """What is trained on."""

    data: tuple[str, ...]
    """Files, directories or globs (quoted; ** for any depth) of chats, completions or texts, or
    data sets of the Hugging Face hub: hub:owner/name or hub:owner/name/path."""
    context: int = 6400
    """Tokens a row; rows hold several documents. Longer texts are cut into pieces, longer chats
    lose their end."""
    loss_on: LossOn = "assistant"
    """Which tokens of a chat or a completion are learned: the assistant's, or all."""
    chat_template_kwargs: str = '{"enable_thinking": false}'
    """For the target's chat template, as JSON."""
    limit: int | None = None
    """Records to read at most; pieces of a long text count each."""
    held_out: float = 0.01
    """Kept from training, for evaluation: below 1 a fraction of the records, else about so many."""
    skip_bad: bool = False
    """Pass over records that cannot be used, and count them, instead of stopping at the first."""

    def __post_init__(self) -> None:
        if self.context < 2:
            raise UserError(f"--context must be at least 2, got {self.context}")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit must be at least 1, got {self.limit}")
        if not self.held_out >= 0 or (self.held_out > 1 and self.held_out % 1):
            raise UserError(
                f"--held-out must be a fraction or a number of records, got {self.held_out:g}"
            )
        parse_template_kwargs(self.chat_template_kwargs)


class Prepared(NamedTuple):
    """Both sides of a data set.

    Attributes:
      training: at least one row.
      held_out: maybe none.
    """

    training: PackedDataset
    held_out: PackedDataset


def prepare(
    config: DataConfig, tokenizer: Tokenizer, directory: Path, *, vocab_size: int
) -> Prepared:
    """Encodes and packs the data into `directory`, unless that is done already.

    What was packed and what was skipped is told on standard error.

    Args:
      config: the data and what is done with them.
      tokenizer: the target's.
      directory: made if need be; several processes may ask for the same at once.
      vocab_size: the target's.

    Raises:
      UserError: the data cannot be used, or the directory not be written; says where.
    """
    files = without(find_files(config.data), [directory])
    name = _made_from(config, files, tokenizer, vocab_size)
    encoder = Encoder(
        tokenizer,
        vocab_size,
        loss_on=config.loss_on,
        template_kwargs=parse_template_kwargs(config.chat_template_kwargs),
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / f"{_MADE}.lock"):
            found = _load(directory / _MADE, name)
            if found is None:
                with _replacing(directory / _MADE) as part:
                    _make(config, files, encoder, part, name)
                found = _load(directory / _MADE, name)
    except OSError as error:
        raise UserError(
            f"cannot write the prepared data to {directory}: {error.strerror or error}; free disk "
            "space or name another directory, and run again"
        ) from error
    assert found is not None  # it was just made
    return found


def _made_from(
    config: DataConfig, files: Sequence[Path], tokenizer: Tokenizer, vocab_size: int
) -> str:
    """A name for all that the rows depend on."""
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
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def _load(directory: Path, name: str) -> Prepared | None:
    """What is there, if it was made from the same."""
    sets = [PackedDataset.load(directory, field) for field in Prepared._fields]
    if not all(made is not None and made.made_from == name for made in sets):
        return None
    return Prepared(*filter(None, sets))


@contextlib.contextmanager
def _replacing(directory: Path) -> Iterator[Path]:
    """A new directory that takes the place of another at the end, if nothing goes wrong."""
    for left in directory.parent.glob(f"{directory.name}.tmp-*"):  # by a process that was killed
        shutil.rmtree(left)
    part = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f"{directory.name}.tmp-"))
    try:
        yield part
        shutil.rmtree(directory, ignore_errors=True)
        part.replace(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _make(
    config: DataConfig, files: Sequence[Path], encoder: Encoder, directory: Path, name: str
) -> None:
    skipped = Skipped()
    bad = skipped if config.skip_bad else refuse
    size = sum(path.stat().st_size for path in files)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(progress_bars())
        training, held_out = (
            Writer(directory, field, config.context, encoder.vocab_size)
            for field in Prepared._fields
        )
        stack.callback(training.close)
        stack.callback(held_out.close)
        below = _threshold(config, files)
        bar = progress.add_task("prepare", total=size, note="")
        for examples, read in _batches(read_all(files, config.limit, bad)):
            for example, document in zip(examples, encoder.encode(examples, bad=bad), strict=True):
                if document is not None:
                    (held_out if example.digest < below else training).add(document)
            progress.update(bar, completed=read, note=f"{training.packer.statistics.rows:,} rows")
        training.finish(name)
        held_out.finish(name)
        if not training.packer.statistics.rows:
            why = f"; the first that was skipped: {skipped.first}" if skipped.count else ""
            raise UserError(f"nothing in {', '.join(config.data)} is left to train on{why}")
        progress.update(bar, completed=size)
    made = _load(directory, name)
    assert made is not None
    for field, packed in zip(Prepared._fields, made, strict=True):
        progress.console.print(
            f"{field.replace('_', ' ')}: {packed}", highlight=False, soft_wrap=True
        )
    if skipped.count:
        progress.console.print(
            f"skipped {skipped.count:,} bad records, the first: {skipped.first}",
            highlight=False,
            soft_wrap=True,
        )


def _threshold(config: DataConfig, files: Sequence[Path]) -> int:
    """Records with a digest below it are held out."""
    if config.held_out < 1:
        return int(config.held_out * 2**64)
    digests = (example.digest for example, _ in read_all(files, config.limit, Skipped()))
    lowest = heapq.nsmallest(int(config.held_out), set(digests))
    return lowest[-1] + 1 if lowest else 0


def _batches(examples: Iterator[tuple[Example, int]]) -> Iterator[tuple[list[Example], int]]:
    """So much at a time as is encoded together."""
    batch: list[Example] = []
    held = read = 0
    for example, read in examples:
        batch.append(example)
        held += _size(example.content)
        if held >= _ENCODED:
            yield batch, read
            batch, held = [], 0
    if batch:
        yield batch, read


def _size(content: Content) -> int:
    """Characters, about."""
    match content:
        case Text(text):
            return len(text)
        case Completion(prompt, completion):
            return len(prompt) + len(completion)
        case Tokens(tokens):
            return len(tokens)
        case Chat(messages):
            return sum(len(message["content"]) for message in messages)
