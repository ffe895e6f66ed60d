"""The program `train.regenerate`: answers records with their target."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dart_jax.data.records import Skipped, find_files, refuse, without
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Output, Request
from dart_jax.engine.sequence import Sequence
from dart_jax.errors import UserError, warn
from dart_jax.files import check_writable
from dart_jax.model import DartModel
from dart_jax.programs.command_line import RESUMABLE, Advice
from dart_jax.progress import progress_bars, stage
from dart_jax.weights import hub
from train.data.answers import Answer, AnswerLog, Conversation, conversations, lines
from train.data.config import parse_template_kwargs
from train.data.examples import read_all
from train.regenerate.config import RegenerateConfig
from train.run import work_directory

_VERSION = 5  # of the work directory's format
_LOG = "answers.log"
_BLOCK = 16  # records of a block per slot; a block is answered before the next is read
_BURST = 32  # steps between which texts that have ended are replaced
_UNFINISHED = 0.99  # part that is done at most, before all is


def log_of(out: Path) -> Path:
    """Returns the log of a file of answers, in a work directory next to it."""
    return out.with_name(out.name + ".work").resolve() / _LOG


def unfinished(out: Path) -> bool:
    """Tells whether answers are missing from a file, of which a log has those that were made."""
    log = log_of(out)
    return log.is_file() and log.stat().st_size > 0


class Summary(NamedTuple):
    """A run's summary: the records that were not, or not completely, answered; the answers in
    the file, their tokens, those cut off, the seconds it took, and whether all records are
    answered."""

    skipped: Skipped
    answers: int = 0
    tokens: int = 0
    unfinished: int = 0
    seconds: float = 0.0
    complete: bool = True

    def plus(self, conversations: Iterable[Conversation]) -> Summary:
        """Returns the same with further answers."""
        new = [answer for conversation in conversations for answer in conversation.answers]
        return self._replace(
            answers=self.answers + len(new),
            tokens=self.tokens + sum(len(answer.tokens) for answer in new),
            unfinished=self.unfinished + sum(answer.finish == "length" for answer in new),
        )

    def __str__(self) -> str:
        late = "" if self.complete else f", the time is over; {RESUMABLE}"
        return (
            f"{self.answers:,} answers, {self.tokens:,} tokens, {self.unfinished:,} cut off, "
            f"{self.seconds:.1f} s{self.skipped}{late}"
        )


def run(config: RegenerateConfig, advice: Advice | None = None) -> Summary:
    """Generates the answers and writes the file; `advice` is told what Ctrl-C leaves. Raises
    UserError if a setting, the models or the data cannot be used; answers made before stay."""
    began, path = time.monotonic(), log_of(config.out)
    if not config.out.parent.is_dir():
        raise UserError(f"no directory {config.out.parent} for --out; make it first")
    check_writable(config.out)
    if config.out.exists() and not unfinished(config.out):
        raise UserError(f"--out {config.out} already exists; delete it or name another file")
    directory = hub.resolve(config.target, patterns=hub.TARGET)
    files = without(find_files(config.data), (path.parent, config.out))
    with work_directory.locked(path.parent), contextlib.closing(AnswerLog(path)) as log:
        settings, result = _settings(config, directory), "answers" * (not log.empty)
        work_directory.check_settings(path.parent, settings, result=result, cure="another --out")
        with stage(f"loading {config.target}"):
            model = DartModel.from_pretrained(
                directory, config.drafter, config.ngram, dtype=config.dtype, mesh=config.mesh
            )
        try:
            summary = _Regeneration(config, files, model, log, began).run(advice or Advice())
        except OSError as error:
            if error.errno is None:  # of a library that cannot be loaded
                raise
            raise UserError(
                f"cannot write to {path.parent} or {config.out}: {error.strerror or error}; free "
                "disk space, and run again to resume"
            ) from error
        if summary.complete and not log.unused:
            work_directory.remove(path.parent)
    if summary.complete and log.unused:
        warn(
            f"{path.parent} still holds {log.unused:,} answers to records that are not in --data "
            "any more; the same command with these goes on, or delete it"
        )
    return summary


def _settings(config: RegenerateConfig, target: Path) -> dict[str, Any]:
    """Returns what determines an answer besides its prompt, by option name."""
    names = "dtype", "max_new_tokens", "max_length", "temperature", "top_p", "top_k", "seed"
    return {
        "version": _VERSION,
        "--target": work_directory.contents(target, hub.TARGET),
        "--chat-template-kwargs": parse_template_kwargs(config.chat_template_kwargs),
        **{f"--{name.replace('_', '-')}": getattr(config, name) for name in names},
    }


class _OutOfTimeError(Exception):
    """The time for answers has passed."""


class _Regeneration:
    """Answers all records, block by block; answers that are recorded are not made again."""

    def __init__(
        self,
        config: RegenerateConfig,
        files: SequenceOf[Path],
        model: DartModel,
        log: AnswerLog,
        began: float,
    ):
        self._config, self._files, self._log = config, files, log
        self._tokenizer, self._vocab_size = model.tokenizer, model.target.vocab_size
        self._stop_ids = tuple(model.eos)
        self._engine = model.engine(
            EngineConfig(config.batch_size, max_length=config.max_length, burst=_BURST)
        )
        self._began, self._skipped = began, Skipped()
        self._bad = self._skipped if config.skip_bad else refuse
        self._template_kwargs = parse_template_kwargs(config.chat_template_kwargs)
        self._copies = Counter[int]()  # of records read so far, by digest
        self._block: list[Conversation] = []  # in progress
        self._summary = Summary(self._skipped)  # of what is in the file
        self._size = self._new_tokens = 0  # bytes of the file and new tokens, of this process

    def run(self, advice: Advice) -> Summary:
        """Answers all records, unless the time is over before; what is answered is in the file."""
        complete = True
        try:
            self._answer_all()
        except OSError:
            raise
        except (KeyboardInterrupt, Exception) as end:
            complete = False
            self._write()
            if self._summary.answers:
                note = f"{self._summary.answers:,} answers are in {self._config.out}"
                advice.text = f"{note}; {RESUMABLE}"
                if isinstance(end, UserError):
                    raise UserError(f"{end} ({note}, and the same command goes on)") from None
            if not isinstance(end, _OutOfTimeError):
                raise
        if complete and not self._summary.answers:
            raise UserError(f"there is no answer to write: {self._skipped.first}")
        seconds = time.monotonic() - self._began
        return self._summary._replace(seconds=seconds, complete=complete)

    def _answer_all(self) -> None:
        config, size = self._config, sum(path.stat().st_size for path in self._files)
        examples = read_all(self._files, config.limit, self._bad)
        end, began = 0, time.monotonic()
        with progress_bars() as progress:
            bar = progress.add_task("regenerate", total=1, completed=self._part(0), note="")
            while block := list(islice(examples, _BLOCK * config.batch_size)):
                for example in block:
                    copy = self._copies[example.digest]
                    self._copies[example.digest] += 1
                    try:
                        self._block += conversations(
                            example, copy, self._tokenizer, len(config.temperature)
                        )
                    except UserError as error:
                        self._bad(error)
                # Files are read in chunks, ahead of the answers.
                start, end = end, min(block[-1].read, size - 1)
                turns = sum(len(each.turns) for each in self._block)
                for _ in self._answer_block():
                    answered = sum(len(each.answers) for each in self._block)
                    pace = self._new_tokens / (time.monotonic() - began)
                    progress.update(
                        bar,
                        completed=self._part((start + (end - start) * answered / turns) / size),
                        note=f"{self._summary.answers + answered:,} answers, {pace:,.0f} tokens/s",
                    )
                self._write()
                progress.update(bar, completed=self._part(end / size))
            progress.update(bar, completed=1)

    def _answer_block(self) -> Iterator[None]:
        """Answers all turns of a block of conversations; yields now and then. Raises
        _OutOfTimeError after --minutes, unless nothing was answered."""
        engine, waiting = self._engine, deque(self._block)
        running: dict[Sequence, tuple[Conversation, bytes, list[Output]]] = {}
        while waiting or running:
            while waiting and len(running) < self._config.batch_size:
                conversation = waiting.popleft()
                if not conversation.pending or (prompt := self._prompt(conversation)) is None:
                    continue
                key = conversation.key(prompt)
                if (answer := self._log.take(key)) is not None:
                    conversation.add_answer(answer, self._tokenizer)
                    waiting.appendleft(conversation)  # for its next turn
                elif self._late:
                    if not running:
                        raise _OutOfTimeError
                    waiting.appendleft(conversation)
                    break
                else:
                    sequence = engine.add(self._request(conversation, prompt, key))
                    running[sequence] = conversation, key, []
            for sequence, output in engine.step() if running else ():
                conversation, key, outputs = running[sequence]
                if output.error is not None:
                    raise output.error
                outputs.append(output)
                if output.last:
                    del running[sequence]
                    self._add_answer(conversation, key, sequence.request, Output.joined(outputs))
                    waiting.appendleft(conversation)
            yield

    @property
    def _spent(self) -> float:
        """The part of --minutes that has passed, 0 without a limit."""
        minutes = self._config.minutes
        return 0.0 if minutes is None else (time.monotonic() - self._began) / (60 * minutes)

    @property
    def _late(self) -> bool:
        return self._new_tokens > 0 and self._spent > 1

    def _part(self, answered: float) -> float:
        """Returns how much is done when a part of the records is answered: more, where less than
        the rest of the time is left."""
        return min(max(answered, self._spent), _UNFINISHED)

    def _request(self, conversation: Conversation, prompt: list[int], key: bytes) -> Request:
        """Returns the request of an answer, with draws of its own."""
        config = self._config
        seed = np.random.SeedSequence([config.seed, int.from_bytes(key)])
        return Request(
            np.array(prompt, np.int32),
            config.max_new_tokens,
            config.samplings[conversation.sampling].sampling,
            seed=int(seed.generate_state(1)[0]),
            stop_ids=self._stop_ids,
        )

    def _add_answer(
        self, conversation: Conversation, key: bytes, request: Request, made: Output
    ) -> None:
        """Records a new answer."""
        prompt, tokens = request.tokens.tolist(), made.tokens.tolist()
        answer = Answer(prompt, tokens, made.finish or "length")
        self._log.add(key, answer)
        self._new_tokens += len(answer.tokens)
        conversation.add_answer(answer, self._tokenizer)

    def _prompt(self, conversation: Conversation) -> list[int] | None:
        """Returns the prompt of the next turn; ends the conversation, and tells why, if the chat
        template rejects it or it leaves no room for an answer."""
        tokenizer, report = self._tokenizer, self._bad
        longest, vocab_size = self._engine.max_length, self._vocab_size
        try:
            prompt = conversation.prompt(tokenizer, self._template_kwargs)
            if (outside := tokenizer.outside(prompt, vocab_size)) is not None:
                must = f"the prompt's tokens must be in 0..{vocab_size - 1}, one is {outside}"
                raise UserError(must)
            if len(prompt) < longest:
                return prompt
            report = self._skipped
            raise UserError(
                f"a prompt of {len(prompt)} tokens leaves no room in {longest} positions"
            )
        except UserError as error:
            conversation.finish()
            report(UserError(f"{conversation.where}: {error}"))
            return None

    def _write(self) -> None:
        """Appends the answers of the block to the file, in place of what an earlier run left."""
        added = lines(self._block, self._tokenizer)
        if added:
            with self._config.out.open("r+b" if self._config.out.exists() else "w+b") as file:
                file.truncate(self._size)  # without what was interrupted
                file.seek(self._size)
                try:
                    file.write(added)
                    file.flush()
                except OSError:
                    file.truncate(self._size)  # no half a line
                    raise
                os.fsync(file.fileno())
        self._size += len(added)
        self._summary = self._summary.plus(self._block)
        self._block.clear()
