"""Train a drafter for a target: DART (paper, section 4.1), EAGLE-3, or a block drafter.

    dart-jax train-drafter --target Qwen/Qwen3-1.7B --data chats.jsonl --out runs/dart

Data: chats (ShareGPT, UltraChat, `messages`), instructions (Alpaca, CodeAlpaca, GSM8K), completions
and plain text, in files or data sets of the Hugging Face hub; and the output of `regenerate`.
The run's directory receives the prepared data, checkpoints, `metrics.jsonl` and at the end the
drafter itself, in bfloat16 in `drafter/`, which `dart_jax` and the reference load. To resume an
interrupted run, run the same command again. `--config FILE.toml`, as the first option, reads a
recipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from dart_jax.programs.command_line import RESUMABLE, program
from train.drafter.config import DrafterTraining
from train.run import config_file


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program(RESUMABLE):
        config = config_file.parse(DrafterTraining, args, __doc__)
        from train.drafter.program import train

        print(train(config))


if __name__ == "__main__":
    main()
