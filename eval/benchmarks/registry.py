"""The benchmarks that speculative decoding is measured on, by name.

Their files are looked for in a directory, or come from the Hugging Face hub. Any file of questions
is a benchmark as well; `questions` says which forms its records may have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from dart_jax.data.compression import COMPRESSIONS
from dart_jax.data.records import HUB, find_files, is_text, records
from dart_jax.errors import UserError
from eval.benchmarks.questions import FIELDS, Question, read_question


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Where questions are found, and what they are called.

    Attributes:
      name: on the command line and in results.
      title: as the paper's table has it.
      files: names that are looked for in a directory, of which the first one there is taken; of a
        user's own file, its path.
      hub: `owner/name/path` of a data set; None if its authors have none on the hub.
      by_category: whether its categories are reported apart.
    """

    name: str
    title: str
    files: tuple[str, ...]
    hub: str | None
    by_category: bool = False


_ALL = (
    Benchmark("alpaca", "Alpaca", ("alpaca.jsonl",), "tatsu-lab/alpaca/data/train-*.parquet"),
    Benchmark(
        "code_alpaca",
        "CodeAlpaca",
        ("code_alpaca.json",),
        "sahil2801/CodeAlpaca-20k/code_alpaca_20k.json",
    ),
    Benchmark(
        "humaneval",
        "HumanEval",
        ("HumanEval.jsonl", "humaneval_eagle.jsonl"),
        "openai/openai_humaneval/openai_humaneval/test-*.parquet",
    ),
    # The newest problems; all of them are over 4 GB, most of it tests.
    Benchmark(
        "livecodebench",
        "LiveCode",
        ("livecodebench.jsonl", "test6.jsonl"),
        "livecodebench/code_generation_lite/test6.jsonl",
    ),
    Benchmark("math500", "Math500", ("math500.jsonl",), "HuggingFaceH4/MATH-500/test.jsonl"),
    Benchmark(
        "mbpp",
        "MBPP",
        ("mbpp.jsonl",),
        "google-research-datasets/mbpp/full/test-*.parquet",
    ),
    Benchmark(
        "mt_bench",
        "MT-bench",
        ("mt_bench.jsonl",),
        "HuggingFaceH4/mt_bench_prompts/raw/question.jsonl",
        by_category=True,
    ),
    Benchmark("gsm8k", "GSM8K", ("gsm8k_test.jsonl",), "openai/gsm8k/main/test-*.parquet"),
    Benchmark("spec_bench", "Spec-Bench", ("spec_bench.jsonl",), None, by_category=True),
)
BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}

# Those of the paper, in its table's order.
PAPER = tuple(BENCHMARKS)[:7]

# Of Spec-Bench, the only one that its authors keep elsewhere.
_BY_HAND = (
    "put question.jsonl of github.com/hemingkx/Spec-Bench into --data-dir as spec_bench.jsonl"
)


class MissingFile(UserError):
    """A benchmark's questions are not where they should be."""


def load_all(
    text: str, data_dir: Path | None, limit: int
) -> tuple[dict[str, list[Question]], list[str]]:
    """The first questions of several benchmarks; of `all`, those that are found.

    Args:
      text: names and files between commas.
      data_dir: as for `load`.
      limit: questions of each at most.

    Returns:
      By name or file, as `load`; and why benchmarks were left out, where all were asked for.

    Raises:
      UserError: as `parse_names` and `load`, or nothing is found.
    """
    found: dict[str, list[Question]] = {}
    left_out = []
    for name in parse_names(text):
        try:
            found[name] = load(name, data_dir, limit)
        except MissingFile as error:
            if name in _split(text):
                raise
            left_out.append(f"{name}: {error}")
    if not found:
        raise UserError(f"none of {text!r} is found, the first since {left_out[0]}")
    return found, left_out


def parse_names(text: str) -> tuple[str, ...]:
    """Names and files between commas -> each once, as `load` takes them; `all` is every name.

    Raises:
      UserError: one is neither a name nor a file, or two would be called the same.
    """
    found: dict[str, str] = {}
    for name in _split(text):
        for each in BENCHMARKS if name == "all" else (name,):
            called = find(each).name
            other = found.setdefault(called, each)
            if not _same(each, other):
                raise UserError(
                    f"{other} and {each} would both be called {called}; rename a file, or pass one"
                )
    if not found:
        raise UserError(f"no benchmark; pass all, a file, or some of {', '.join(BENCHMARKS)}")
    return tuple(found.values())


def find(name: str) -> Benchmark:
    """A benchmark by its name, or by the path of its file.

    Raises:
      UserError: there is neither.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(
            f"no benchmark or file {name!r}; pass all, a file, or some of {', '.join(BENCHMARKS)}"
        )
    if is_text(path):
        raise UserError(f"{name} holds no records; pass a .jsonl, .json or .parquet file")
    stem = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return Benchmark(stem.stem, stem.stem, (name,), None)


def load(name: str, data_dir: Path | None, limit: int | None = None) -> list[Question]:
    """The questions of a benchmark, in its file's order.

    Args:
      name: one of `BENCHMARKS`, or the path of a file.
      data_dir: where the files of the named ones lie; None takes those of the hub.
      limit: questions at most, the first ones; nothing behind them is read.

    Raises:
      MissingFile: there is no such file.
      UserError: it cannot be read or used; says where.
    """
    if limit is not None and limit < 1:
        raise UserError(f"at least one question of a benchmark is needed, not {limit}")
    benchmark = find(name)
    named = name in BENCHMARKS
    files = _files(benchmark, data_dir) if named else (Path(name).expanduser(),)
    questions = list(islice(_questions(benchmark, files), limit))
    if not questions:
        raise UserError(f"{files[0]} holds no questions; check the file, or leave it out")
    return questions


def _questions(benchmark: Benchmark, files: Sequence[Path]) -> Iterator[Question]:
    def columns(names: list[str]) -> list[str]:
        return [name for name in names if name in FIELDS] or names

    for path in files:
        for record in records(path, columns=columns):
            yield read_question(record, benchmark.name, benchmark.title, benchmark.by_category)


def _files(benchmark: Benchmark, data_dir: Path | None) -> tuple[Path, ...]:
    if data_dir is None:
        return _from_hub(benchmark)
    for file in benchmark.files:
        if (path := data_dir.expanduser() / file).is_file():
            return (path,)
    names = " or ".join(benchmark.files)
    if benchmark.hub is None:
        raise MissingFile(f"no {names} in {data_dir}; {_BY_HAND}")
    raise MissingFile(
        f"no {names} in {data_dir}; put it there, or pass no --data-dir, to download {HUB}"
        f"{benchmark.hub}"
    )


def _from_hub(benchmark: Benchmark) -> tuple[Path, ...]:
    if benchmark.hub is None:
        raise MissingFile(f"{benchmark.title} is not on the Hugging Face hub; {_BY_HAND}")
    try:
        return find_files((HUB + benchmark.hub,))
    except UserError as error:
        told = f"{error}; a local {benchmark.files[0]} is read with --data-dir"
        raise MissingFile(told) from error


def _split(text: str) -> list[str]:
    return [name for name in map(str.strip, text.split(",")) if name]


def _same(one: str, other: str) -> bool:
    """Whether two names are of the same benchmark."""
    if one in BENCHMARKS or other in BENCHMARKS:
        return one == other
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()
