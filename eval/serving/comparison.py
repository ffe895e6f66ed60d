"""Measures servers in turn: every round of a load puts the same requests to each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from dart_jax.errors import UserError
from eval.serving.client.completion import (
    Answer,
    Reading,
    Request,
    Server,
    ask,
    same_texts,
)
from eval.serving.client.load import closed_loop, open_loop, poisson_arrivals
from eval.serving.client.metrics import Counters
from eval.serving.server import scrape
from eval.serving.summary import Load, Round, Summary
from eval.serving.workload import Workload

# Answers requests under a load.
Measure = Callable[[Sequence[Request], Load], Round]

# Seconds that a server may take until nothing runs any more.
_QUIET = 10.0


def compare(
    ways: Mapping[str, Measure],
    workload: Workload,
    loads: Sequence[Load],
    rounds: int,
    requests: int,
    texts: Collection[str] = (),
    notify: Callable[[str], None] = lambda _: None,
) -> list[Summary]:
    """Measures all loads, after requests that are not reported.

    Rounds have different requests, so that no prefix cache has seen their prompts, unless the
    workload has too few. Within a round, every server gets the same ones; which server is first
    changes from round to round.

    Args:
      ways: how to measure, by name.
      workload: what is asked.
      loads: each measured in turn.
      rounds: how often.
      requests: least number of a round's requests.
      texts: the ways that should write the first one's texts.
      notify: is told what is being measured.

    Returns:
      A summary for each load and way, in this order.

    Raises:
      UserError: a server answers no request at all.
    """
    number, names, found = 0, list(ways), []
    for load in loads:
        count = max(requests, 2 * (load.clients or 0))
        warm_up = workload.requests(number, min(count, 2 * (load.clients or 8)))
        number += len(warm_up)
        for name in names:
            notify(f"{load}: {name}, warm-up")
            check_answers(name, ways[name](warm_up, load).answers)
        measured: dict[str, list[Round]] = {name: [] for name in names}
        for turn in range(rounds):
            some = workload.requests(number, count)
            number += count
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                notify(f"{load}: {name}, round {turn + 1} of {rounds}")
                measured[name].append(ways[name](some, load))
        first = measured[names[0]]
        for name in names:
            same = _same(first, measured[name]) if name in texts else None
            found.append(Summary(name, load, measured[name], same))
    return found


def _same(some: Sequence[Round], others: Sequence[Round]) -> tuple[int, int]:
    """Equal texts, and texts, of all rounds."""
    pairs = [same_texts(a.answers, b.answers) for a, b in zip(some, others, strict=True)]
    return sum(same for same, _ in pairs), sum(count for _, count in pairs)


def check_answers(name: str, answers: Sequence[Answer]) -> None:
    """Raises UserError if all requests failed."""
    if answers and all(answer.error for answer in answers):
        raise UserError(f"the {name} server answers no request: {answers[0].error}")


def measure_server(
    server: Server, requests: Sequence[Request], load: Load, timeout: float
) -> Round:
    """One round on a server; of an open loop, the first request's seed is also the arrivals'."""
    return asyncio.run(_round(server, requests, load, timeout))


async def _round(server: Server, requests: Sequence[Request], load: Load, timeout: float) -> Round:
    await wait_until_quiet(server)
    before = await scrape(server)
    cpu = time.process_time()

    async def send(request: Request, start: float | None) -> Answer:
        return await ask(server, request, Reading(timeout=timeout), start)

    if load.rate is None:
        answers = await closed_loop(send, requests, load.clients or 1)
    else:
        arrivals = poisson_arrivals(load.rate, len(requests), requests[0].seed)
        answers = await open_loop(send, requests, arrivals)
    cpu = time.process_time() - cpu
    seconds = max(answer.end for answer in answers) - min(answer.start for answer in answers)
    counters = Counters.between(before, await scrape(server))
    return Round(answers, seconds, counters, cpu / seconds)


async def wait_until_quiet(server: Server) -> Counters | None:
    """Waits until nothing runs or waits any more; returns the last counters, if there are any."""
    end = time.monotonic() + _QUIET
    while True:
        counters = await scrape(server)
        if counters is None or not (counters.running or counters.waiting):
            return counters
        if time.monotonic() > end:
            return counters
        await asyncio.sleep(0.05)
