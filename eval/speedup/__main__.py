"""Compare plain decoding with drafting methods: tokens per second, speed-up, tau, time by stage.

    dart-jax speedup
    dart-jax speedup --method all --bench mt_bench,humaneval --data-dir benchmarks

Without arguments it runs SmolLM2 on questions where that is or can be fetched; otherwise the demo
model, on functions of Python library modules that it was not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from dart_jax.programs.command_line import parse, program
from eval.speedup.config import SpeedupConfig


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        config = parse(SpeedupConfig, args, __doc__)
        from eval.speedup.program import run

        run(config, Console())


if __name__ == "__main__":
    main()
