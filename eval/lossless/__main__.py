"""Check that drafting leaves the target's output unchanged, token for token and in distribution.

    dart-jax lossless
    dart-jax lossless --method all

Decodes the same prompts with and without drafts, with the same seeds, in every combination of
temperature, filters, batch size and tree size. The first difference of two outputs is
examined: it is either a tie within rounding or two different distributions. Then many short samples
are compared with the target's exact probabilities. Exit status 1 if anything differs beyond
rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from dart_jax.programs.command_line import parse, program
from eval.lossless.config import LosslessConfig


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: not lossless; 2: bad input, reported in one line."""
    with program():
        config = parse(LosslessConfig, args, __doc__)
        from eval.lossless.program import run

        if not run(config, Console()):
            sys.exit(1)


if __name__ == "__main__":
    main()
