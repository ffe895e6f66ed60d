"""Generate a drafter's training data with its target.

    dart-jax regenerate --target owner/name --data chats.jsonl --out answers.jsonl

A drafter must predict what its target writes, so training on the target's answers raises the
acceptance length over training on the original ones. Chats are answered turn by turn, each answer
replacing the record's own; completions are replaced too; texts are used as prompts. Each answer
becomes a record for `train-drafter`, with token ids, so that it is not tokenised again:

    {"tokens": [..], "prompt_length": n, "text": "..", "finish": "stop" or "length", "source": ".."}

Answers to the same record share their source. Each finished block of records is in --out at once;
after --minutes, Ctrl-C or an error, all answers are that the run has come to. The same command goes
on where it stopped, also with records that were repaired or added: a log beside --out, from which
that is written anew, has all answers, and stays until all of them are in --out.
"""

from __future__ import annotations

from collections.abc import Sequence

from dart_jax.programs.command_line import RESUMABLE, parse, program
from train.regenerate.config import RegenerateConfig


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program(RESUMABLE) as advice:
        config = parse(RegenerateConfig, args, __doc__)
        from train.regenerate.program import run

        print(run(config, advice))


if __name__ == "__main__":
    main()
