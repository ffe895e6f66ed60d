"""Options of `eval.serving`."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path
from typing import Literal

from dart_jax.errors import UserError
from dart_jax.programs.model_choice import ModelChoice
from eval.benchmarks.registry import find
from eval.serving.client.connection import Address

# Workloads that are made here; other names are benchmarks of `eval.benchmarks`.
MADE = ("demo", "shared-prefix", "chat", "code", "sharegpt")


@dataclasses.dataclass(frozen=True)
class ServingBenchConfig(ModelChoice):
    """The servers, what is asked of them, and how."""

    url: tuple[str, ...] = ()
    """Running servers to measure, instead of starting them: one, or two to compare. --target names
    their target, whose tokenizer makes the prompts."""
    api_key: str | None = None
    """Key of the servers of --url; by default the environment's DART_API_KEY, if it is set."""
    workload: str = "demo"
    """demo and shared-prefix: the demo's prompts, plainly or after a long common beginning; chat,
    code and sharegpt: lengths of published workloads; or a benchmark, such as mt_bench."""
    data_dir: Path | None = None
    """Directory of the benchmarks' files; by default they come from the Hugging Face hub."""
    skip_bad: bool = False
    """Skip and count questions that cannot be used, instead of stopping at the first."""
    thinking: bool = False
    """Enable thinking in the chat template."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    max_new_tokens: int = 128
    """Tokens to generate for each prompt; chat, code and sharegpt have lengths of their own."""
    ignore_eos: bool = False
    """Let texts go on after their end, up to --max-new-tokens."""
    length_scale: float = 1.0
    """Factor of the lengths of chat, code and sharegpt."""
    longest: int = 2048
    """Most tokens of a prompt and its answer together."""
    prefix_tokens: int = 512
    """Length of the common beginning of shared-prefix."""
    clients: tuple[int, ...] = (1, 4, 16, 64)
    """Closed loop: so many clients, each of which sends its next request when the last one has
    ended; each number is measured in turn. --soak takes the largest."""
    rate: tuple[float, ...] = ()
    """Open loop instead: requests arrive at random, so many a second on average."""
    requests: int = 32
    """Requests in a round, but at least two for each client."""
    rounds: int = 3
    """How often each load is measured, the servers in turn."""
    baseline: tuple[Literal["plain", "fixed"], ...] = ("plain",)
    """plain: the same server without drafting. fixed: the same requests in fixed batches in this
    process, each of which ends as a whole."""
    fixed_batch: int = 16
    """Requests in a batch of --baseline fixed."""
    tree_nodes: int | None = None
    """Nodes of the drafted server's trees; by default they follow its load."""
    slots: int | None = None
    """Requests that a server decodes together; by default the server's own number."""
    serve_options: str = ""
    """More options of the servers that are started, in one word, such as "--queue 512"."""
    slo_ttft: float = 0.5
    """Goodput counts requests whose first token comes within so many seconds..."""
    slo_tpot: float = 0.05
    """...and whose other tokens take at most so many seconds each."""
    timeout: float = 300.0
    """Seconds after which a request is given up."""
    seed: int = 0
    """Seed of workload, arrivals and sampling."""
    soak: float | None = None
    """Instead of measuring, try one server for so many seconds with requests of every kind."""
    pool: int = 256
    """Different requests of --soak."""
    ttft_check: bool = False
    """Instead of measuring, check how long short prompts wait beside 15 texts that are written."""
    json: Path | None = None
    """Write all measurements to this file."""
    markdown: Path | None = None
    """Write the tables to this file."""
    plot: Path | None = None
    """Draw the figure into this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ("max_new_tokens", "requests", "rounds", "fixed_batch", "pool", "prefix_tokens")
        for name in whole:
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        for name in ("length_scale", "slo_ttft", "slo_tpot", "timeout"):
            if not getattr(self, name) > 0:
                raise UserError(f"--{name.replace('_', '-')} must be above 0")
        if min(self.clients, default=0) < 1:
            raise UserError("--clients must be at least 1")
        if not all(rate > 0 for rate in self.rate):
            raise UserError("--rate must be above 0")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature must be 0 or a positive number, got {self.temperature}")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}")
        if self.longest < 16:
            raise UserError("--longest must be at least 16")
        if self.workload not in MADE:
            find(self.workload)
        self._check_servers()

    def _check_servers(self) -> None:
        _ = self.addresses, self.server_words(None)
        if len(self.url) > 2:
            raise UserError("--url takes one server, or two to compare")
        if self.url and (self.tree_nodes is not None or self.slots or self.serve_options):
            raise UserError("--url names running servers; their options cannot be chosen here")
        for name in ("tree_nodes", "slots"):
            value = getattr(self, name)
            if value is not None and value < (name == "slots"):
                raise UserError(f"--{name.replace('_', '-')} must be at least {name == 'slots':d}")
        if self.soak is not None and not self.soak > 0:
            raise UserError("--soak must be above 0")
        if self.soak is not None and self.ttft_check:
            raise UserError("--soak and --ttft-check exclude each other; pass one of them")
        one_server = self.soak is not None or self.ttft_check
        if one_server and len(self.url) > 1:
            raise UserError("--soak and --ttft-check try one server; pass one --url")
        if one_server and (self.markdown is not None or self.plot is not None):
            raise UserError("--soak and --ttft-check write only --json")

    @property
    def addresses(self) -> list[Address]:
        """The running servers; raises UserError if a URL is wrong."""
        key = os.environ.get("DART_API_KEY", "") if self.api_key is None else self.api_key
        return [Address.parse(url)._replace(key=key) for url in self.url]

    def server_words(self, tree_nodes: int | None) -> list[str]:
        """The options of a server to start, for the model and what else was chosen.

        It compiles before the first request what the workload needs and, for a soak, everything.
        """
        words = []
        for field in dataclasses.fields(ModelChoice):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            name = f"--{field.name.replace('_', '-')}"
            words += [name] if value is True else [name, str(value)]
        if tree_nodes is not None:
            words += ["--tree-nodes", str(tree_nodes)]
        if self.slots is not None:
            words += ["--slots", str(self.slots)]
        if self.soak is None and "--warmup" not in self.serve_options:
            words += ["--warmup", "filtered" if self.temperature else "greedy"]
        if self.ttft_check and "--stream-interval" not in self.serve_options:
            words += ["--stream-interval", "0"]  # its chunks are steps
        try:
            return words + shlex.split(self.serve_options)
        except ValueError as error:
            raise UserError(f"--serve-options: {error}") from None
