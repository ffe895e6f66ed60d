"""Measure what clients of a server get: latency, throughput, and what drafting changes.

    python -m eval.serving
    python -m eval.serving --workload sharegpt --clients 16 --baseline plain fixed
    python -m eval.serving --workload chat --length-scale 0.25 --rate 2 8
    python -m eval.serving --url http://127.0.0.1:8000 http://127.0.0.1:8001
    python -m eval.serving --soak 300 --clients 64
    python -m eval.serving --ttft-check

Starts `python -m dart_jax.serve` twice, with and without drafting, and asks both the same, in turn;
or measures running servers of any kind. --soak and --ttft-check try one server instead, and end
with exit status 1 if it does something wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console

from dart_jax.programs.command_line import parse, program
from dart_jax.programs.outputs import check_outputs, write_json, write_text
from dart_jax.programs.provenance import environment, revision
from dart_jax.progress import stage
from eval.serving import figure
from eval.serving.client.completion import Request, Server
from eval.serving.comparison import Measure, compare, measure_server
from eval.serving.config import ServingBenchConfig
from eval.serving.first_token import check_first_tokens
from eval.serving.fixed import measure_fixed
from eval.serving.report import Report
from eval.serving.server import (
    ANSWERING,
    Process,
    find_server,
    scrape,
    server_environment,
    start_servers,
)
from eval.serving.soak.program import run_soak
from eval.serving.summary import Load, Round
from eval.serving.workload import library_tokens, load_tokenizer, make_workload

# The servers by name, and their processes if they were started here.
Servers = dict[str, tuple[Server, Process | None]]

# Short prompts of --ttft-check: enough for a 99th percentile.
_SHORT_PROMPTS = 100


def run(config: ServingBenchConfig, console: Console) -> None:
    """Measures, prints and writes the reports.

    Raises:
      UserError: a server cannot be started or answers nothing, or a report cannot be written.
    """
    config = config.decided()
    workload = make_workload(config, load_tokenizer(config))
    options = {"drafted": config.server_words(config.tree_nodes)}
    if "plain" in config.baseline:
        options["plain"] = config.server_words(0)
    with stage("", console) as tell, _servers(config, options, tell) as servers:
        console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
        told = {
            name: str(server.address) if process is None else f"dart_jax.serve {process.options}"
            for name, (server, process) in servers.items()
        }
        # A server that was started here has warmed up, and counts from then on.
        before = {
            name: _compilations(server) if process is None else 0.0
            for name, (server, process) in servers.items()
        }
        ways: dict[str, Measure] = {
            name: functools.partial(_measure, server, config.timeout)
            for name, (server, _) in servers.items()
        }
        texts = list(servers)[1:]
        if "fixed" in config.baseline:
            tell("loading the model for fixed batches")
            ways["fixed"] = _fixed(config)
            told["fixed"] = f"DartModel.generate, batches of at most {config.fixed_batch} requests"
            texts += ["fixed"] * (config.temperature == 0)
        loads = [Load(None, rate) for rate in config.rate] or [Load(n) for n in config.clients]
        summaries = compare(ways, workload, loads, config.rounds, config.requests, texts, tell)
        after = {name: _compilations(server) for name, (server, _) in servers.items()}
    compilations = {name: _difference(after[name], before[name]) for name in after}
    report = Report(config, workload.title, told, summaries, compilations)
    for grid in report.grids:
        console.print(grid.table())
    for line in report.remarks:
        console.print(line, highlight=False, soft_wrap=True)
    if config.markdown:
        write_text(config.markdown, report.markdown())
    if config.json:
        write_json(config.json, report.as_json())
    if config.plot:
        figure.write(config.plot, report)


def _measure(server: Server, timeout: float, requests: Sequence[Request], load: Load) -> Round:
    return measure_server(server, requests, load, timeout)


def _fixed(config: ServingBenchConfig) -> Measure:
    model, most = config.load(), config.fixed_batch

    def measure(requests: Sequence[Request], load: Load) -> Round:
        size = min(load.clients or most, most)
        return measure_fixed(model, requests, size, config.tree_nodes)

    return measure


def _compilations(server: Server) -> float | None:
    counters = asyncio.run(scrape(server))
    return None if counters is None else counters.compilations


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def run_check(config: ServingBenchConfig, console: Console) -> bool:
    """Tries one server, prints what it found and writes the report.

    Returns:
      Whether everything was right.

    Raises:
      UserError: as `run`.
    """
    config = config.decided()
    tokenizer = load_tokenizer(config)
    options = {"drafted": config.server_words(config.tree_nodes)}
    with stage("", console) as tell, _servers(config, options, tell) as servers:
        console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
        server, process = next(iter(servers.values()))
        if config.soak is not None:
            found = run_soak(config, server, process, tokenizer, tell)
            lines = list(map(str, found.checks))
        else:
            text, workload = library_tokens(tokenizer), make_workload(config, tokenizer)
            count = max(config.requests, _SHORT_PROMPTS)
            found = check_first_tokens(
                server, workload, text, count, config.longest, config.timeout, tell
            )
            lines = [str(found)]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    if config.json:
        facts = {"environment": environment(), "revision": revision()}
        write_json(config.json, {**facts, "config": vars(config), **found.as_json()})
    return found.held


@contextlib.contextmanager
def _servers(
    config: ServingBenchConfig,
    options: Mapping[str, Sequence[str]],
    notify: Callable[[str], None],
) -> Iterator[Servers]:
    """The servers to measure: those that run, or new ones with these options."""
    environ = server_environment(len(options))
    # This process may use their device, too: it must not take all of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if config.url:
        names = ("first", "second")
        yield {
            name: (find_server(address), None)
            for name, address in zip(names, config.addresses, strict=False)
        }
        return
    with start_servers(options, environ, notify) as processes:
        yield {
            name: (find_server(each.address, ANSWERING), each) for name, each in processes.items()
        }


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: --soak or --ttft-check found something wrong; 2: bad input,
    reported in one line."""
    with program():
        config = parse(ServingBenchConfig, args, __doc__)
        check_outputs(config.json, config.markdown, drawing=config.plot)
        if config.soak is None and not config.ttft_check:
            run(config, Console())
        elif not run_check(config, Console()):
            raise SystemExit(1)
