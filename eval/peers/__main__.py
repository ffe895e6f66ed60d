"""Compare plain decoding and DART with other engines on this CPU, on the same weights.

    pip install 'dart-jax[peers]'
    dart-jax peers
    dart-jax peers --engine dart llama.cpp --new-tokens 64
    dart-jax peers --engine llama.cpp --target model-Q6_K.gguf --threads 1 2

Every engine decodes the same prompts greedily, one at a time, in a process of its own, by turns.
Those that are not installed are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from dart_jax.programs.command_line import parse, program
from eval.peers.config import PeersConfig


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        config = parse(PeersConfig, args, __doc__)
        from eval.peers.program import run

        run(config, Console())


if __name__ == "__main__":
    main()
