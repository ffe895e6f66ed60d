"""Generate a drafter's training data with its target.

    python -m train.regenerate --target owner/name --data chats.jsonl --out answers.jsonl

A drafter must predict what its target writes, so training on the target's answers raises the
acceptance length over training on the original ones. Chats are answered turn by turn, each answer
replacing the record's own; completions are replaced too; texts are used as prompts. Each answer
becomes a record for `train.drafter`, with token ids, so that it is not tokenised again:

    {"tokens": [..], "prompt_length": n, "text": "..", "finish": "stop" or "length", "source": ".."}

Answers to the same record share their source. To resume an interrupted run, run the same command
again.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from dart_jax.data.contents import Chat
from dart_jax.data.records import Skipped, find_files, fingerprint, refuse, without
from dart_jax.errors import UserError
from dart_jax.files import atomic_path, check_writable, write_atomically
from dart_jax.generation import GenerationConfig
from dart_jax.model import DartModel
from dart_jax.programs.command_line import RESUMABLE, parse, program
from dart_jax.programs.progress import progress_bars
from dart_jax.weights import hub
from train.data.answers import AnswerGenerator, AnswerLog, Conversation, prompt_turns
from train.data.encoding import parse_template_kwargs
from train.data.examples import Example, read_all
from train.run import work_directory

_VERSION = 1  # of the work directory's format
_BLOCK = 16  # batches per block; a block is answered turn by turn before the next is read


@dataclasses.dataclass(frozen=True)
class RegenerateConfig:
    """The data, the target and the sampling."""

    target: str
    """Directory or hub repository of the target."""
    data: tuple[str, ...]
    """Files, directories, globs or data sets of the hub, as for `train.drafter`."""
    out: Path
    """The .jsonl file to write."""
    drafter: str | None = None
    """Directory or hub repository of a drafter that speeds it up."""
    ngram: str | None = None
    """N-gram file for the tree search; without a drafter the n-gram model drafts by itself."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of weights and activations; auto is float32 on CPU, otherwise bfloat16."""
    mesh: str | None = None
    """Devices that decode together, such as model=4 or data=2,model=4: groups of devices that share
    the target's weights (model), each with some of a batch's answers (data). By default one."""
    max_new_tokens: int = 2048
    """Maximum tokens per answer."""
    temperature: tuple[float, ...] = (0.0,)
    """0 decodes greedily; with several temperatures, every record is answered with each."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens with this total probability."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 for all."""
    seed: int = 0
    """Seed of the sampling."""
    batch_size: int = 32
    """Answers generated at once."""
    unfinished: Annotated[
        bool, tyro.conf.arg(help="Drop answers cut off by --max-new-tokens, and end their chats.")
    ] = True
    """Keep answers cut off by --max-new-tokens; otherwise a chat ends before such an answer."""
    chat_template_kwargs: str = '{"enable_thinking": false}'
    """Options for the target's chat template, as JSON."""
    limit: int | None = None
    """Maximum number of records to read; each piece of a long text counts."""
    skip_bad: bool = False
    """Skip and count records that cannot be used, instead of stopping at the first."""
    work: Path | None = None
    """Directory for intermediate results; by default next to the output."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size", "limit"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.seed < 0:
            raise UserError(f"--seed must not be negative, got {self.seed}")
        if not self.temperature:
            raise UserError("--temperature needs at least one value")
        parse_template_kwargs(self.chat_template_kwargs)
        for config in self.samplings:
            _ = config.sampling  # raises for invalid values

    @property
    def samplings(self) -> list[GenerationConfig]:
        """One configuration per temperature."""
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
    """Summary of a run.

    Attributes:
      answers: number of answers in the file.
      tokens: number of their tokens.
      unfinished: number of answers that were cut off.
      skipped: number of records that were not, or not completely, answered.
      first_skipped: why the first of them was skipped.
      seconds: duration of the program.
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


def run(config: RegenerateConfig) -> Summary:
    """Generates the answers and writes the file.

    Raises:
      UserError: a setting, the models or the data cannot be used.
    """
    began = time.perf_counter()
    if config.out.exists():
        raise UserError(f"--out {config.out} already exists; delete it or name another file")
    if not config.out.parent.is_dir():
        raise UserError(f"no directory {config.out.parent} for --out; make it first")
    check_writable(config.out)
    directory = hub.resolve(config.target, patterns=hub.TARGET)
    work = (config.work or config.out.with_name(config.out.name + ".work")).resolve()
    files = without(find_files(config.data), (work, config.out))
    options = {
        f"--{name.replace('_', '-')}": value
        for name, value in dataclasses.asdict(config).items()
        if name not in ("target", "data", "out", "drafter", "ngram", "mesh", "skip_bad", "work")
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
        work_directory.check_settings(work, settings, {})
        model = DartModel.from_pretrained(
            directory, config.drafter, config.ngram, dtype=config.dtype, mesh=config.mesh
        )
        try:
            blocks = _answer_blocks(config, files, model, work, skipped)
            answers, tokens, unfinished = _join(blocks, config.out, skipped)
        except OSError as error:
            raise UserError(
                f"cannot write to {work} or {config.out}: {error.strerror or error}; free disk "
                "space, and run again to resume"
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
    """Answers all blocks; returns their files. Existing files are kept."""
    bad = skipped if config.skip_bad else refuse
    generator = AnswerGenerator(
        model,
        config.samplings,
        config.batch_size,
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
        while block := list(islice(examples, _BLOCK * config.batch_size)):
            after = block[-1][1]
            path = work / f"block-{len(blocks):06}.jsonl"
            if not path.is_file():
                conversations = list(_conversations((example for example, _ in block), generator))
                turns = max(1, sum(len(conversation.turns) for conversation in conversations))
                done = 0
                with AnswerLog(path.with_suffix(".part")) as log:
                    for count in generator.run(conversations, len(blocks), log):
                        done, answered = done + count, answered + count
                        progress.update(
                            bar,
                            completed=before + (after - before) * done / turns,
                            note=f"{answered / (time.perf_counter() - began):.1f} answers/s",
                        )
                write_atomically(path, b"".join(_lines(conversations, model)))
                path.with_suffix(".part").unlink()
            blocks.append(path)
            before = after
            progress.update(bar, completed=after)
        progress.update(bar, completed=size)
    return blocks


def _conversations(
    examples: Iterable[Example], generator: AnswerGenerator
) -> Iterator[Conversation]:
    for example in examples:
        try:
            turns = prompt_turns(example.content, generator.model.tokenizer)
        except UserError as error:
            generator.bad(UserError(f"{example.where}: {error}"))
            continue
        tools = example.content.tools if isinstance(example.content, Chat) else None
        for sampling in range(len(generator.samplings)):
            yield Conversation(example.where, example.digest, sampling, turns, tools=tools)


def _lines(conversations: Iterable[Conversation], model: DartModel) -> Iterator[bytes]:
    """Yields one record per answer."""
    for conversation in conversations:
        for answer in conversation.answers:
            tokens = [*answer.prompt, *answer.tokens]
            record = {
                "tokens": tokens,
                "prompt_length": len(answer.prompt),
                "text": model.tokenizer.decode(tokens, skip_special_tokens=False),
                "finish": answer.finish,
                "source": f"{conversation.digest:016x}",
            }
            yield json.dumps(record).encode() + b"\n"


def _join(blocks: Iterable[Path], out: Path, skipped: Skipped) -> tuple[int, int, int]:
    """Writes the file; returns the numbers of answers, of their tokens, and of cut-off answers."""
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


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program(RESUMABLE):
        print(run(parse(RegenerateConfig, args, __doc__)))


if __name__ == "__main__":
    main()
