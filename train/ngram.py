"""Count a corpus into an n-gram model; inspect, query and convert the files.

    dart-jax ngram count --data 'corpus/**/*.jsonl.gz' --tokenizer path/to/target --out model.dng
    dart-jax ngram info model.dng

Data: .jsonl, .ndjson, .json and .parquet files of the records that `train-drafter` reads, and plain
text, one document per file; optionally compressed (.gz, .bz2, .xz or .zst). To resume a killed
run, run the same command again. The result does not depend on workers, memory or interruptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.console import Console

from dart_jax.errors import require
from dart_jax.programs import ngram
from dart_jax.programs.command_line import RESUMABLE, parse, program
from train.counting.config import NgramConfig

Command = Annotated[NgramConfig, tyro.conf.subcommand("count")] | ngram.Command


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program() as advice:
        config = parse(Command, args, __doc__)
        if not isinstance(config, NgramConfig):
            ngram.run(config, Console(soft_wrap=True))
            return
        require("duckdb", "train", "counting")
        from train.counting.program import run

        advice.text = RESUMABLE
        print(run(config))


if __name__ == "__main__":
    main()
