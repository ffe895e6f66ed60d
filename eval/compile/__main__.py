"""Compile the programs of decoding for a GPU or TPU that is not there, and show what they would do.

    dart-jax compile
    dart-jax compile --device v6e --method dart --program step
    dart-jax compile --shape tiny --program step loop --check
    dart-jax compile --shape llama-3.1-70b --mesh data=1,model=8 --layers 8

Nothing is allocated or run: XLA is told what the device is like. Without the device it cannot time
the ways to compute a matrix product and chooses by its own model of costs; what is fused, copied,
updated in place and moved through memory is what the device would run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from dart_jax.programs.command_line import parse, program
from eval.compile.config import CompileConfig


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a check failed; 2: bad input, reported in one line."""
    with program():
        config = parse(CompileConfig, args, __doc__)
        import jax

        from eval.compile.check import violations
        from eval.compile.program import run

        jax.config.update("jax_platforms", "cpu")
        results = run(config, Console())
        if config.check:
            lines = [x for each in results for x in violations(each, config.max_kernels_a_layer)]
            for line in lines:
                print(f"failed: {line}", file=sys.stderr)
            if lines:
                sys.exit(1)
            print(f"{len(results)} programs checked")


if __name__ == "__main__":
    main()
