"""Servers that are started here, and the requests to them, which depend on the options and their
number alone."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.prompts import first_prompts
from eval.serving.client import Body
from eval.serving.config import ServingBenchConfig

# Names of the part of a device's memory that JAX takes, of which one may be set.
_FRACTIONS = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"


@contextlib.contextmanager
def start(options: Sequence[str], share: float = 1.0) -> Iterator[str]:
    """Starts `python -m dart_jax.serve` at a free port, and ends it with the block; yields its URL.
    It may take this share of what JAX may of a device's memory, by default nine tenths. Raises
    UserError with its own message if it does not start."""
    given = [os.environ[name] for name in _FRACTIONS if name in os.environ]
    environ = {name: value for name, value in os.environ.items() if name not in _FRACTIONS}
    environ[_FRACTIONS[0]] = f"{float(given[0] if given else 0.9) * share:.2f}"
    command = [sys.executable, "-m", "dart_jax.serve", "--port", "0", *options]
    with tempfile.TemporaryFile("w+") as log, contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)
        )
        stack.callback(process.terminate)
        assert process.stdout is not None
        address = re.search(r"https?://\S+", process.stdout.readline())
        if address is None:
            process.wait()
            log.seek(0)
            lines = log.read().strip().splitlines() or ["no output"]
            raise UserError(f"the server did not start: {lines[-1].removeprefix('error: ')}")
        yield address[0]


_PROMPTS = 256  # functions of each of the demo's groups, or questions of a benchmark


def bench_requests(config: ServingBenchConfig, tokenizer: Tokenizer) -> Callable[[int], Body]:
    """Returns a function from a number to that request; prompts come again after the last one.
    Raises UserError if the benchmark's files are missing."""
    prompts = first_prompts(config.bench, tokenizer, config.data_dir, _PROMPTS)
    # Those of a group follow each other: a few requests should come from all of them.
    order = np.random.default_rng(config.seed).permutation(len(prompts))

    def request(number: int) -> Body:
        return {
            "prompt": prompts[order[number % len(prompts)]].tokens.tolist(),
            "max_tokens": config.max_new_tokens,
            "temperature": config.temperature,
            "seed": (config.seed + number) % 2**32,
        }

    return request
