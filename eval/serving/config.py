"""Options of `eval.serving`."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least, check_some
from dart_jax.programs.model_choice import ModelChoice


@dataclasses.dataclass(frozen=True)
class ServingBenchConfig(ModelChoice):
    """The servers, and the requests to them."""

    url: tuple[str, ...] = ()
    """Running servers instead of new ones, such as http://127.0.0.1:8000: one, or two to compare.
    --model or --target names their target, whose tokenizer makes the prompts; the environment's
    DART_API_KEY is sent as their key."""
    serve_options: str = ""
    """More options of the servers that are started: --serve-options="--slots 8 --queue 512"."""
    bench: str = "demo"
    """Prompts, in random order: demo, functions of library modules; or the first questions of
    benchmarks, such as mt_bench, or of their files, whose answers follow no schema here."""
    data_dir: Path | None = None
    """Directory of the benchmarks' files; by default they come from the Hugging Face hub."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    max_new_tokens: int = 128
    """Tokens to generate for each prompt."""
    clients: tuple[int, ...] = (1, 4, 16, 64)
    """Clients, each of which sends its next request when the last one has ended; each number takes
    its turn."""
    requests: int | None = None
    """Requests in a round, 32 by default, but at least two for each client."""
    rounds: int = 3
    """Turns of each number of clients, measured with the servers in turn."""
    timeout: float = 300.0
    """Seconds after which a request counts as failed."""
    seed: int = 0
    """Seed of the requests and of sampling."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        from eval.benchmarks.registry import check_bench

        super().__post_init__()
        check_least(self, max_new_tokens=1, requests=1, rounds=1, clients=1, temperature=0)
        check_some(self, "clients")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}")
        if not 0 < self.timeout < float("inf"):
            raise UserError(f"--timeout must be a positive number, got {self.timeout}")
        check_bench(self.bench)
        if len(self.url) > 2:
            raise UserError("--url takes one server, or two to compare")
        if self.url and self.serve_options:
            raise UserError("--serve-options are for servers that are started; leave out --url")
        _ = self.server_options()

    def server_options(self, *more: str) -> list[str]:
        """Returns the options of a server with the chosen model, those of --serve-options, and
        more, which win; raises UserError if the option is not a command line."""
        words = [*self.words(), "--warmup", "filtered" if self.temperature else "greedy"]
        words += ["--generation-config", "none"]  # what requests leave out changes what is measured
        try:
            return [*words, *shlex.split(self.serve_options), *more]
        except ValueError as error:
            raise UserError(f"--serve-options: {error}") from None
