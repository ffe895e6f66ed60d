"""Servers in turn: every round puts the same requests to each of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError
from dart_jax.programs.provenance import write_report
from dart_jax.programs.tables import narrow, show, spread
from dart_jax.progress import stage
from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client import Answer, Body, Client
from eval.serving.config import ServingBenchConfig
from eval.serving.servers import bench_requests, start

_CAPTION = (
    "medians of the rounds ± half their range; ratio: the first server's tokens a second over the "
    "second one's, round by round. per token: after the first one; first: to the first token; both "
    "in ms, medians of the requests. tau: tokens per verification. same: requests with the same "
    "text from both servers"
)
_COLUMNS = "clients", "server", "tok/s", "per token", "first", "tau", "ratio", "same"
_REQUESTS = 32  # in a round


class Round(NamedTuple):
    """One measurement of a server, of its complete answers.

    Attributes:
      texts: of all requests in their order; None of one that failed, whose error is in `errors`.
      tokens_per_second: new tokens, from the first request to the last token.
      per_token: median seconds per token after the first, if an answer has two.
      first: median seconds to the first token, if there is one.
      tau: tokens per verification, bonus token included, or None without drafts.
      compilations: programs compiled meanwhile.
    """

    texts: list[str | None]
    errors: list[str]
    tokens_per_second: float
    per_token: float | None
    first: float | None
    tau: float | None
    compilations: float


class Load(NamedTuple):
    """All rounds of each server, by its name, with one number of clients."""

    clients: int
    rounds: dict[str, list[Round]]

    def _pairs(self) -> list[tuple[Round, Round]]:
        """Both servers' rounds; nothing if there is only one."""
        return list(zip(*self.rounds.values(), strict=True)) if len(self.rounds) > 1 else []

    def ratios(self) -> list[float]:
        """Returns the first server's tokens a second over the second one's, round by round."""
        pairs = self._pairs()
        return [a.tokens_per_second / b.tokens_per_second for a, b in pairs if b.tokens_per_second]

    def same(self) -> tuple[int, int]:
        """Returns how many requests have the same text from both servers, and how many a text."""
        pairs = [pair for a, b in self._pairs() for pair in zip(a.texts, b.texts, strict=True)]
        same = [one == other for one, other in pairs if None not in (one, other)]
        return sum(same), len(same)

    def rows(self) -> Iterator[list[str]]:
        """Yields the table's rows, one for each server; the second one has the comparison."""
        ratio = spread(self.ratios(), ".2f", "x") if self.ratios() else "-"
        comparison = ["", ""], [ratio, "/".join(map(str, self.same()))]
        for (name, rounds), last in zip(self.rounds.items(), comparison, strict=False):
            rate = spread([each.tokens_per_second for each in rounds])
            figures = [("per_token", 1e3), ("first", 1e3), ("tau", 1)]
            medians = [(_median(getattr(x, field) for x in rounds), by) for field, by in figures]
            cells = ["-" if value is None else f"{by * value:.3g}" for value, by in medians]
            yield [str(self.clients), name, rate, *cells, *last]

    def warnings(self) -> Iterator[str]:
        """Yields lines about what went wrong."""
        for name, rounds in self.rounds.items():
            where = f"WARNING: {name} with {self.clients} clients"
            if errors := [error for each in rounds for error in each.errors]:
                yield f"{where}: {len(errors)} requests failed, the first: {errors[0]}"
            if count := sum(each.compilations for each in rounds):
                yield f"{where}: {count:g} programs were compiled; the times include that"

    def as_json(self) -> dict[str, Any]:
        """Returns everything but the texts."""
        servers = {
            name: [{k: v for k, v in each._asdict().items() if k != "texts"} for each in rounds]
            for name, rounds in self.rounds.items()
        }
        comparison = {"ratios": self.ratios(), "same": self.same()}
        return {"clients": self.clients, **comparison, "rounds": servers}


def _median(values: Iterable[float | None]) -> float | None:
    """Returns the median of those that are not None, if there are any."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


async def run(config: ServingBenchConfig, tokenizer: Tokenizer, console: Console) -> None:
    """Compares drafted with plain decoding, or the servers of --url; prints the table, and writes
    the report, anew after each number of clients. Raises UserError if a file is missing, or a
    server does not start or answer."""
    request = bench_requests(config, tokenizer)
    plain = config.server_options("--tree-nodes", "0")
    options = {"drafted": config.server_options(), "plain": plain}
    with stage("", console) as notify:
        async with contextlib.AsyncExitStack() as stack:
            urls: dict[str, str] = dict(zip(("first", "second"), config.url, strict=False))
            for name, words in () if urls else options.items():
                notify(f"starting the {name} server")
                words = ["--compile-first", *words]
                urls[name] = stack.enter_context(start(words, 1 / len(options)))
            servers = {name: Client(url, config.timeout) for name, url in urls.items()}
            for client in servers.values():
                await stack.enter_async_context(client)
            loads: list[Load] = []
            async for load in compare(config, servers, request, notify):
                loads.append(load)
                content = {"options": options, "loads": [each.as_json() for each in loads]}
                title = f"A server of {config.title}"
                write_report(config, title, [_table(loads)], **content)
    show(console, _table(loads))
    for line in (line for load in loads for line in load.warnings()):
        console.print(line, highlight=False, soft_wrap=True)


def _table(loads: Iterable[Load]) -> Table:
    rows = [row for load in loads for row in load.rows()]
    return narrow("Serving", _COLUMNS, rows, _CAPTION)


async def compare(
    config: ServingBenchConfig,
    servers: Mapping[str, Client],
    request: Callable[[int], Body],
    notify: Callable[[str], None],
) -> AsyncIterator[Load]:
    """Measures every number of clients, in turn, each after requests that are not reported.

    Every round has the next requests, by their numbers, and which server is first changes from
    round to round, so that a busy machine hurts all.

    Raises:
      UserError: a server answers no request of a warm-up.
    """
    numbers, names = itertools.count(), list(servers)
    for clients in config.clients:
        load = Load(clients, {name: [] for name in names})
        for turn in range(-1, config.rounds):
            count = 2 * clients if turn < 0 else max(config.requests or _REQUESTS, 2 * clients)
            bodies = [request(number) for number in itertools.islice(numbers, count)]
            for name in names if turn % 2 else reversed(names):
                kind = f"round {turn + 1} of {config.rounds}" if turn >= 0 else "warm-up"
                notify(f"{clients} clients: {name}, {kind}")
                measurement = await _measure(servers[name], bodies, clients)
                if turn >= 0:
                    load.rounds[name].append(measurement)
                elif len(measurement.errors) == count:
                    error = measurement.errors[0]
                    raise UserError(f"the {name} server answers no request: {error}")
        yield load


async def _measure(client: Client, bodies: list[Body], clients: int) -> Round:
    answers: list[Answer] = [Answer() for _ in bodies]
    left = iter(enumerate(bodies))

    async def run_client() -> None:
        for number, body in left:
            answers[number] = await client.ask(body, stream=True)

    before = await client.quiet_metrics()
    await asyncio.gather(*(run_client() for _ in range(clients)))
    metrics = await client.metrics()
    added = {name: value - before.get(name, 0.0) for name, value in metrics.items()}
    drafts = added.get("spec_decode_num_drafts_total")
    complete = [each for each in answers if not each.error]
    seconds = max(each.end for each in answers) - min(each.start for each in answers)
    return Round(
        texts=[None if each.error else each.text for each in answers],
        errors=[each.error for each in answers if each.error],
        tokens_per_second=sum(each.tokens for each in complete) / seconds,
        per_token=_median(each.per_token for each in complete),
        first=_median(each.first for each in complete),
        tau=1 + added["spec_decode_num_accepted_tokens_total"] / drafts if drafts else None,
        compilations=added.get("compilations_total", 0.0),
    )
