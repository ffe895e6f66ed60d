"""Time a decode step and its search, and compare them with the device's limit.

    dart-jax latency
    dart-jax latency --shape qwen3-8b --context 1024 --tree-nodes 16 60

Uses random weights in real shapes, so nothing is downloaded. Without arguments it measures the
demo's shape on a CPU, otherwise that of Qwen3-8B.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from dart_jax.programs.command_line import parse, program
from eval.latency.config import LatencyConfig


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        config = parse(LatencyConfig, args, __doc__)
        from eval.latency.program import run

        run(config, Console())


if __name__ == "__main__":
    main()
