"""Compare a server's drafted with plain decoding as its clients see it.

    dart-jax serving
    dart-jax serving --clients 8 --serve-options="--slots 8"
    dart-jax serving --url http://127.0.0.1:8000 http://127.0.0.1:8001

Starts `dart-jax serve` with and without drafting and asks both the same, in turn, or asks
running servers.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence

from rich.console import Console

from dart_jax.errors import require
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs
from eval.serving.config import ServingBenchConfig


def run(config: ServingBenchConfig, console: Console) -> None:
    """Measures, prints and writes the report; raises UserError if a package or a file is missing,
    or a server does not start or answer."""
    check_outputs(config.json)
    for package in ("httpx", "prometheus_client"):
        require(package, "serve", "eval.serving")
    from dart_jax.text.tokenizer import Tokenizer
    from dart_jax.weights import hub
    from eval.serving import comparison

    config = config.decided()
    path = hub.resolve(config.target_path, revision=config.revision, patterns=hub.TARGET)
    asyncio.run(comparison.run(config, Tokenizer.load(path), console))


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, in one line."""
    with program():
        # As Ctrl-C, this ends the servers that are started here.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        run(parse(ServingBenchConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
