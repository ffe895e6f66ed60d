"""The benchmarks, by name.

Their files are read from a directory or from the Hugging Face hub; `OWN` comes with this package,
and `made` makes the questions of two.
Any file of questions is a benchmark too; `questions` lists the formats of its records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from dart_jax.data.records import COMPRESSIONS, HUB, Record, find_files, is_text, records
from dart_jax.errors import UserError, meant
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks import made
from eval.benchmarks.copying import editing, of_category, second_turn
from eval.benchmarks.questions import Question, read_question


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Attributes:
      name: on the command line.
      title: in tables.
      files: names to look for in a directory, or the path of a user's file.
      hub: `owner/name/path` of a data set on the hub, if there is one.
      read: a record's question, of a benchmark of this name and title, or None if it has none.
      made: makes the questions, of a benchmark of this name and title; then there are no files.
      schema: JSON schema that all answers follow.
    """

    name: str
    title: str
    files: tuple[str, ...] = ()
    hub: str | None = None
    read: Callable[[Record, str, str], Question | None] = read_question
    made: Callable[[str, str], Iterator[Question]] | None = None
    schema: Mapping[str, Any] | None = None


_ALL = (
    ("alpaca", "Alpaca", "alpaca.jsonl", "tatsu-lab/alpaca/data/train-*.parquet"),
    (
        *("code_alpaca", "CodeAlpaca", "code_alpaca.json"),
        "sahil2801/CodeAlpaca-20k/code_alpaca_20k.json",
    ),
    (
        *("humaneval", "HumanEval", "HumanEval.jsonl humaneval_eagle.jsonl"),
        "openai/openai_humaneval/openai_humaneval/test-*.parquet",
    ),
    # The newest problems; all of them are over 4 GB, most of it tests.
    (
        *("livecodebench", "LiveCode", "livecodebench.jsonl test6.jsonl"),
        "livecodebench/code_generation_lite/test6.jsonl",
    ),
    ("math500", "Math500", "math500.jsonl", "HuggingFaceH4/MATH-500/test.jsonl"),
    ("mbpp", "MBPP", "mbpp.jsonl", "google-research-datasets/mbpp/full/test-*.parquet"),
    ("mt_bench", "MT-bench", "mt_bench.jsonl", "HuggingFaceH4/mt_bench_prompts/raw/question.jsonl"),
    ("gsm8k", "GSM8K", "gsm8k_test.jsonl", "openai/gsm8k/main/test-*.parquet"),
    ("spec_bench", "Spec-Bench", "spec_bench.jsonl", None),
)
_by_category = partial(read_question, by_category=True)
BENCHMARKS = {
    name: Benchmark(name, title, tuple(files.split()), hub) for name, title, files, hub in _ALL
}
for _name in ("mt_bench", "spec_bench"):
    BENCHMARKS[_name] = dataclasses.replace(BENCHMARKS[_name], read=_by_category)

# Benchmarks whose answers repeat much of their prompts: parts of published ones, and texts of our
# own code (`made`).
_COPY = (
    Benchmark(
        *("summarization", "Summarization", BENCHMARKS["spec_bench"].files),
        read=of_category("summarization", "Summary:"),
    ),
    Benchmark("rag", "RAG", BENCHMARKS["spec_bench"].files, read=of_category("rag", "Answer:")),
    Benchmark(
        *("second_turns", "second turns", BENCHMARKS["mt_bench"].files, BENCHMARKS["mt_bench"].hub),
        read=second_turn,
    ),
    Benchmark(
        *("editing", "editing", ("HumanEval.jsonl",), BENCHMARKS["humaneval"].hub), read=editing
    ),
    Benchmark("extraction", "extraction", made=made.extraction, schema=made.ORDERS),
    Benchmark("tool_calls", "tool calls", made=made.tool_calls),
)
COPY = {each.name: each for each in _COPY}

# Questions of our own, which need no download. Nobody else measures them; `all` leaves them out.
_OWN_FILE = str(Path(__file__).with_name("questions.jsonl"))
OWN = Benchmark("questions", "questions", (_OWN_FILE,), read=_by_category)

# Functions of library modules (see `prompts`), which are not combined with other benchmarks.
DEMO = "demo"

_NAMED = {**BENCHMARKS, OWN.name: OWN, **COPY}
_GROUPS = {"all": BENCHMARKS, "copy": COPY}
_CHOICE = f"pass all, copy, a file, or some of {', '.join(_NAMED)}"

# For Spec-Bench, the only one that is not on the hub.
_BY_HAND = (
    "put question.jsonl of github.com/hemingkx/Spec-Bench into --data-dir as spec_bench.jsonl"
)


class MissingFile(UserError):
    """The file of a benchmark is missing."""


def check_bench(text: str | None) -> None:
    """Raises UserError unless it is None, `DEMO`, or as `parse_names` takes it."""
    if text not in (None, DEMO):
        parse_names(text)


def load_all(
    text: str | None, tokenizer: Tokenizer, data_dir: Path | None, limit: int
) -> tuple[dict[str, list[Question]], list[str]]:
    """Loads the first `limit` questions of each of several benchmarks; of `all` and `copy`, of
    those that are there. Errors as for `load` and `parse_names`.

    Args:
      text: comma-separated names and files, or `DEMO`, which has no questions. None: our own
        questions for a target with a chat template, otherwise `DEMO`.

    Returns:
      Name or file -> questions; and why benchmarks of these two were left out.
    """
    text = text or (OWN.name if tokenizer.chat_template else DEMO)
    questions: dict[str, list[Question]] = {}
    left_out: list[str] = []
    if text == DEMO:
        return questions, left_out
    for name in parse_names(text):
        try:
            questions[name] = load(name, data_dir, limit)
        except MissingFile as error:
            if name in _split(text):
                raise
            left_out.append(f"{name}: {error}")
    if not questions:
        raise UserError(f"no benchmark of {text!r} is found; {left_out[0]}")
    return questions, left_out


def parse_names(text: str) -> tuple[str, ...]:
    """Splits comma-separated names and files into arguments for `load`, without duplicates; `all`
    stands for the published benchmarks, `copy` for those of `COPY`. Raises UserError if one is
    neither a name nor a file, or two have the same name."""
    names: dict[str, str] = {}
    for each in _split(text):
        for name in _GROUPS.get(each, (each,)):
            bench = find(name).name
            if (other := names.setdefault(bench, name)) != name:
                raise UserError(
                    f"{other} and {name} would both be called {bench}; rename a file, or pass one"
                )
    if not names:
        raise UserError(f"no benchmark; {_CHOICE}")
    return tuple(names.values())


def find(name: str) -> Benchmark:
    """Returns a benchmark by its name or the path of its file; raises UserError without one."""
    if name in _NAMED:
        return _NAMED[name]
    path = Path(name).expanduser()
    if not path.is_file():
        near = meant(name, (*_NAMED, *_GROUPS, DEMO), _CHOICE)
        raise UserError(f"no benchmark or file {name!r}; {near}")
    if is_text(path):
        raise UserError(f"{name} holds no records; pass a .jsonl, .json or .parquet file")
    stem = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return Benchmark(stem.stem, stem.stem, (name,))


def load(name: str, data_dir: Path | None, limit: int | None = None) -> list[Question]:
    """Loads the first `limit` questions of a benchmark, by name or path of a file; those with names
    come from `data_dir`, or from the hub. Raises MissingFile if it is not there, and UserError if
    it, or a record of it, cannot be read or used."""
    benchmark = find(name)
    if benchmark.made is not None:
        return list(islice(benchmark.made(benchmark.name, benchmark.title), limit))
    files = _files(benchmark, data_dir)
    every = (record for path in files for record in records(path, bad=_refuse))
    read = (benchmark.read(record, benchmark.name, benchmark.title) for record in every)
    questions = list(islice((question for question in read if question is not None), limit))
    if not questions:
        raise UserError(f"{files[0]} holds no questions; check the file, or leave it out")
    return questions


def _refuse(error: UserError) -> None:
    raise error


def _files(benchmark: Benchmark, data_dir: Path | None) -> tuple[Path, ...]:
    if benchmark is OWN or _NAMED.get(benchmark.name) is not benchmark:
        return (Path(benchmark.files[0]).expanduser(),)  # that of `OWN`, or a user's
    if data_dir is not None:
        for file in benchmark.files:
            if (path := data_dir.expanduser() / file).is_file():
                return (path,)
        missing = f"no {' or '.join(benchmark.files)} in {data_dir}"
        if benchmark.hub is None:
            raise MissingFile(f"{missing}; {_BY_HAND}")
        download = f"pass no --data-dir, to download {HUB}{benchmark.hub}"
        raise MissingFile(f"{missing}; put it there, or {download}")
    if benchmark.hub is None:
        raise MissingFile(f"{benchmark.title} is not on the Hugging Face hub; {_BY_HAND}")
    try:
        return find_files((HUB + benchmark.hub,))
    except UserError as error:
        message = f"{error}; to read a local {benchmark.files[0]}, pass --data-dir"
        raise MissingFile(message) from error


def _split(text: str) -> list[str]:
    return [name for name in map(str.strip, text.split(",")) if name]
