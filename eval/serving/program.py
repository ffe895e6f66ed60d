"""Compare a server's drafted with plain decoding as its clients see it, or try one hard.

    python -m eval.serving
    python -m eval.serving --clients 8 --serve-options="--slots 8"
    python -m eval.serving --url http://127.0.0.1:8000 http://127.0.0.1:8001
    python -m eval.serving --soak 5 --clients 64
    python -m eval.serving --soak 90 --requests 10000 --clients 1 2 4 8 16
    python -m eval.serving --hostile 500
    python -m eval.serving --delays --url http://127.0.0.1:8000 http://127.0.0.1:8001

Starts `python -m dart_jax.serve` with and without drafting and asks both the same, in turn, or asks
running servers. --delays measures what users wait for instead. --soak and --hostile try one server,
and end with exit status 1 if they find a fault.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from collections.abc import Sequence

from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from eval.serving.config import ServingBenchConfig


def run(config: ServingBenchConfig, console: Console) -> bool:
    """Compares or tries, prints and writes the report; returns whether there was no fault. Raises
    UserError if a package or a file is missing, or a server does not start or answer."""
    check_outputs(config.json)
    for package in ("httpx", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"eval.serving needs {package}: pip install 'dart-jax[serve]'")
    from eval.serving import comparison, delays, hostile, soak

    config = config.decided()
    path = hub.resolve(config.target_path, revision=config.revision, patterns=hub.TARGET)
    work = delays.run if config.delays else soak.run if config.soak else comparison.run
    work = hostile.run if config.hostile else work
    results = asyncio.run(work(config, Tokenizer.load(path), console))
    write_report(config, **results)
    return not results.get("faults")


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a fault was found; 2: bad input, in one line."""
    with program():
        # As Ctrl-C, this ends the servers that are started here.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        if not run(parse(ServingBenchConfig, args, __doc__), Console()):
            sys.exit(1)
