"""The target writes the drafter's training text itself.

    python -m train.regenerate --target owner/name --data chats.jsonl --out answers.jsonl

What a drafter must predict is what its target says, so answers drawn from the target raise
acceptance over the original ones. Chats are answered turn by turn, each answer in the place of the
record's own; of prompts with completions the prompts; texts are prompts. Each answer becomes a
record for `train.drafter`, so that what the target wrote is not tokenised anew:

    {"tokens": [..], "prompt_length": n, "text": "..", "finish": "stop" or "length", "source": ".."}

The source tells which answers belong to one record. An interrupted run goes on where it was when
the same command runs again.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import tyro

from dart_jax.data.records import Skipped, find_files, fingerprint, refuse, without
from dart_jax.errors import UserError, one_line_errors
from dart_jax.files import atomic_path, write_atomically
from dart_jax.generation import GenerationConfig
from dart_jax.model import DartModel
from dart_jax.programs.progress import progress_bars
from dart_jax.weights import hub
from train.data.answers import Answering, Dialogue, Journal, turns_of
from train.data.encoding import parse_template_kwargs
from train.data.examples import Example, read_all
from train.run import work_directory

_VERSION = 1  # of what work directories hold
_BLOCK = 16  # batches answered turn by turn, before the next are read


@dataclasses.dataclass(frozen=True)
class RegenerateConfig:
    """What is answered, by which target, and how."""

    target: str
    """Directory or hub repository of the target."""
    data: tuple[str, ...]
    """Files, directories, globs or data sets of the hub, as for `train.drafter`."""
    out: Path
    """The .jsonl file to write."""
    drafter: str | None = None
    """Directory or hub repository of a drafter that makes it faster."""
    ngram: str | None = None
    """N-gram file for its search; without a drafter it drafts alone."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and activations; auto is float32 on CPU, else bfloat16."""
    max_new_tokens: int = 2048
    """Most tokens of an answer."""
    temperature: tuple[float, ...] = (0.0,)
    """0 takes the most likely tokens; with several, every record is answered with each."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this much probability."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0 for all."""
    seed: int = 0
    """Of the draws."""
    batch: int = 32
    """Answers written at once."""
    unfinished: bool = True
    """Keep answers that --max-new-tokens cuts off; without them a chat ends before such a one."""
    chat_template_kwargs: str = '{"enable_thinking": false}'
    """For the target's chat template, as JSON."""
    limit: int | None = None
    """Records to read at most; pieces of a long text count each."""
    skip_bad: bool = False
    """Pass over records that cannot be used, and count them, instead of stopping at the first."""
    work: Path | None = None
    """Directory for what is done so far; by default beside the output."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch", "limit"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.seed < 0:
            raise UserError(f"--seed must not be negative, got {self.seed}")
        if not self.temperature:
            raise UserError("--temperature needs at least one value")
        parse_template_kwargs(self.chat_template_kwargs)
        for config in self.samplings:
            _ = config.sampling  # finds what cannot be

    @property
    def samplings(self) -> list[GenerationConfig]:
        """One for each temperature."""
        return [
            GenerationConfig(
                max_new_tokens=self.max_new_tokens,
                temperature=temperature,
                top_p=self.top_p,
                top_k=self.top_k,
            )
            for temperature in self.temperature
        ]


class Summary(NamedTuple):
    """What was done.

    Attributes:
      answers: in the file.
      tokens: of the answers.
      unfinished: of the answers, those that were cut off.
      skipped: records that could not be answered, or not to their end.
      first_skipped: why the first could not.
      seconds: from the program's start to its end.
    """

    answers: int
    tokens: int
    unfinished: int
    skipped: int
    first_skipped: str
    seconds: float

    def __str__(self) -> str:
        words = [
            f"{self.answers:,} answers, {self.tokens:,} tokens, {self.unfinished:,} cut off",
            f"{self.seconds:.1f} s",
        ]
        if self.skipped:
            words.append(f"skipped {self.skipped:,}, the first: {self.first_skipped}")
        return ", ".join(words)


def main(config: RegenerateConfig) -> Summary:
    """Answers and writes the file.

    Raises:
      UserError: a setting, the models or the data cannot be used.
    """
    began = time.perf_counter()
    if config.out.exists():
        raise UserError(f"--out {config.out} is there already; delete it or name another file")
    if not config.out.parent.is_dir():
        raise UserError(f"no directory {config.out.parent} for --out; make it first")
    directory = hub.resolve(config.target, patterns=hub.TARGET)
    work = (config.work or config.out.with_name(config.out.name + ".work")).resolve()
    files = without(find_files(config.data), (work, config.out))
    options = {
        f"--{name.replace('_', '-')}": value
        for name, value in dataclasses.asdict(config).items()
        if name not in ("target", "data", "out", "drafter", "ngram", "skip_bad", "work")
    }
    settings = json.loads(
        json.dumps(
            {
                "version": _VERSION,
                "--data": fingerprint(files),
                "--target": fingerprint(
                    sorted(path for path in directory.iterdir() if path.is_file())
                ),
                **options,
            }
        )
    )
    skipped = Skipped()
    with work_directory.locked(work):
        work_directory.claim(work, settings, {})
        model = DartModel.from_pretrained(
            directory, config.drafter, config.ngram, dtype=config.dtype
        )
        try:
            blocks = _answer_blocks(config, files, model, work, skipped)
            answers, tokens, unfinished = _join(blocks, config.out, skipped)
        except OSError as error:
            raise UserError(
                f"cannot write to {work} or {config.out}: {error.strerror or error}; free disk "
                "space, and run again: what is done stays done"
            ) from error
        work_directory.remove(work)
    seconds = time.perf_counter() - began
    return Summary(answers, tokens, unfinished, skipped.count, skipped.first, seconds)


def _answer_blocks(
    config: RegenerateConfig,
    files: Sequence[Path],
    model: DartModel,
    work: Path,
    skipped: Skipped,
) -> list[Path]:
    """The files of all blocks, each with its records; what is there is not made again."""
    bad = skipped if config.skip_bad else refuse
    answering = Answering(
        model,
        config.samplings,
        config.batch,
        parse_template_kwargs(config.chat_template_kwargs),
        unfinished=config.unfinished,
        seed=config.seed,
        bad=bad,
        too_long=skipped,
    )
    examples = read_all(files, config.limit, bad)
    blocks: list[Path] = []
    size = sum(path.stat().st_size for path in files)
    with progress_bars() as progress:
        bar = progress.add_task("regenerate", total=size, note="")
        answered, before, began = 0, 0, time.perf_counter()
        while block := list(islice(examples, _BLOCK * config.batch)):
            after = block[-1][1]
            path = work / f"block-{len(blocks):06}.jsonl"
            if not path.is_file():
                dialogues = list(_dialogues((example for example, _ in block), answering))
                turns = max(1, sum(len(dialogue.turns) for dialogue in dialogues))
                done = 0
                with Journal(path.with_suffix(".part")) as journal:
                    for count in answering.run(dialogues, len(blocks), journal):
                        done, answered = done + count, answered + count
                        progress.update(
                            bar,
                            completed=before + (after - before) * done / turns,
                            note=f"{answered / (time.perf_counter() - began):.1f} answers/s",
                        )
                write_atomically(path, b"".join(_lines(dialogues, model)))
                path.with_suffix(".part").unlink()
            blocks.append(path)
            before = after
            progress.update(bar, completed=after)
        progress.update(bar, completed=size)
    return blocks


def _dialogues(examples: Iterable[Example], answering: Answering) -> Iterator[Dialogue]:
    for example in examples:
        try:
            turns = turns_of(example.content, answering.model.tokenizer)
        except UserError as error:
            answering.bad(UserError(f"{example.where}: {error}"))
            continue
        for sampling in range(len(answering.samplings)):
            yield Dialogue(example.where, example.digest, sampling, turns)


def _lines(dialogues: Iterable[Dialogue], model: DartModel) -> Iterator[bytes]:
    """One record an answer."""
    for dialogue in dialogues:
        for answer in dialogue.answers:
            tokens = [*answer.prompt, *answer.tokens]
            record = {
                "tokens": tokens,
                "prompt_length": len(answer.prompt),
                "text": model.tokenizer.decode(tokens, skip_special_tokens=False),
                "finish": answer.finish,
                "source": f"{dialogue.digest:016x}",
            }
            yield json.dumps(record).encode() + b"\n"


def _join(blocks: Iterable[Path], out: Path, skipped: Skipped) -> tuple[int, int, int]:
    """Writes the file; gives its answers, their tokens, and how many were cut off."""
    answers = tokens = unfinished = 0
    with atomic_path(out) as part, part.open("wb") as file:
        for block in blocks:
            for line in block.read_bytes().splitlines(keepends=True):
                file.write(line)
                record = json.loads(line)
                answers += 1
                tokens += len(record["tokens"]) - record["prompt_length"]
                unfinished += record["finish"] == "length"
        if not answers:
            why = skipped.first or "all were cut off, so raise --max-new-tokens"
            raise UserError(f"there is no answer to write: {why}")
    return answers, tokens, unfinished


if __name__ == "__main__":
    with one_line_errors(), work_directory.interruptible():
        print(main(tyro.cli(RegenerateConfig, description=__doc__)))
