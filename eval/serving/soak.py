"""`--soak`: one server under requests of every kind, and what must hold afterwards.

Clients ask at random for some time: they stream, take answers whole, or hang up. Then each request
is asked alone, and its answer must be the same.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.tables import table
from dart_jax.progress import stage
from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client import Answer, Choice, Client
from eval.serving.config import ServingBenchConfig
from eval.serving.mixed import mixed_requests
from eval.serving.requests import Body
from eval.serving.servers import connected, sample

# How a client behaves, and how often. A twin comes beside the same request, which is cancelled.
_KINDS = {"streamed": 0.4, "whole": 0.3, "cancelled": 0.2, "twin": 0.1}
# Different requests, and the longest of them where a server does not tell what it takes.
_POOL, _LENGTH = 640, 512
# Of log-probabilities: logits are the same bits, but what they are divided by is summed in another
# order beside other rows.
_ROUNDING = 1e-5
# What memory may grow in the second half: a share, and bytes.
_GROWTH, _GROWTH_BYTES = 0.02, 2**24


class Visit(NamedTuple):
    """One request of a client: one of `_KINDS`, its number in the pool, and the outcome."""

    kind: str
    case: int
    answer: Answer

    @property
    def refused(self) -> bool:
        """True if the server had no room in its queue."""
        return self.answer.status == 429


async def run(config: ServingBenchConfig, tokenizer: Tokenizer, console: Console) -> dict[str, Any]:
    """Soaks a server and prints its faults; returns a report, with the `faults`.

    Raises:
      UserError: a file is missing, or the server does not start or answer.
    """
    assert config.soak is not None
    memory, visits = list[int](), list[Visit]()
    # Every number of clients takes its turn several times, for the same time each.
    turns = config.clients * config.rounds
    seconds = 60 * config.soak / len(turns)
    count = math.ceil(config.requests / sum(turns)) if config.requests else None
    with stage("", console) as notify:
        options = {"soaked": config.server_options()}
        async with connected(config, options, notify) as (servers, pids):
            [client] = servers.values()
            pool = mixed_requests(tokenizer, _POOL, config.seed, client.max_length or _LENGTH)
            sampling = asyncio.create_task(sample(pids, memory))
            for turn, clients in enumerate(turns):
                notify(f"turn {turn + 1} of {len(turns)}: {clients} clients")
                visits += await visit(client, pool, clients, seconds, count, config.seed + turn)
            sampling.cancel()
            notify("asking every request alone")
            try:
                metrics = await client.quiet_metrics()
                alone = await ask_alone(client, pool, visits)
                faults = leaks(metrics, started=bool(pids))
            except UserError as error:
                alone, faults = {}, [str(error)]
    wrong = [(each.case, text) for each in visits for text in fault(each, alone)]
    faults += [*growth(memory), *(text for _, text in wrong)]
    if config.requests and len(visits) < config.requests:
        faults.append(f"{len(visits)} requests in {config.soak:g} minutes; allow more for --soak")
    kinds = Counter("refused" if each.refused else each.kind for each in visits)
    names = Counter(name for each in visits for name in pool[each.case])
    rows = [[f"requests: {kind}", f"{count:,}"] for kind, count in kinds.most_common()]
    rows += [[f"with {name}", f"{count:,}"] for name, count in names.most_common()]
    if memory:
        rows.append(["memory, MB", f"{memory[0] / 1e6:,.0f} to {max(memory) / 1e6:,.0f}"])
    rows.append(["faults", str(len(faults))])
    numbers = " ".join(map(str, config.clients))
    printed = table(f"{len(visits):,} requests of {numbers} clients", ("", ""), rows)
    console.print(printed)
    for line in faults[:20]:
        console.print(line, highlight=False, soft_wrap=True)
    title = f"A soaked server of {config.title}"
    return {
        "title": title,
        "tables": [printed],
        "requests": kinds,
        "options": names,
        "memory": memory,
        "faults": faults,
        "wrong": {case: pool[case] for case, _ in wrong},
    }


async def visit(
    client: Client,
    pool: Sequence[Body],
    clients: int,
    seconds: float,
    count: int | None,
    seed: int,
) -> list[Visit]:
    """Lets clients ask at random.

    Args:
      client: asks the server.
      pool: different requests.
      clients: how many ask at once.
      seconds: after which they ask no more.
      count: requests after which each of them asks no more; None for no limit.
      seed: of their choices.
    """
    visits: list[Visit] = []
    end = time.perf_counter() + seconds

    async def one(rng: np.random.Generator, kind: str, case: int) -> Visit:
        stream = kind == "streamed" or (kind != "whole" and rng.random() < 0.5)
        # From 1 ms to 3 s: also while the request waits, or its prompt is read.
        patience = 10 ** rng.uniform(-3, 0.5) if kind == "cancelled" else None
        stream &= "prompt_logprobs" not in pool[case]  # which are not streamed
        return Visit(kind, case, await client.ask(pool[case], stream=stream, patience=patience))

    async def run_client(number: int) -> None:
        rng, asked = np.random.default_rng([seed, number]), 0
        while time.perf_counter() < end and (count is None or asked < count):
            kind, case = rng.choice([*_KINDS], p=[*_KINDS.values()]), int(rng.integers(len(pool)))
            kinds = [kind, "cancelled"] if kind == "twin" else [kind]
            visits.extend(await asyncio.gather(*(one(rng, each, case) for each in kinds)))
            asked += len(kinds)
            await asyncio.sleep(rng.uniform(0, 0.05) + visits[-1].refused)

    await asyncio.gather(*map(run_client, range(clients)))
    return visits


async def ask_alone(
    client: Client, pool: Sequence[Body], visits: Sequence[Visit]
) -> dict[int, Answer]:
    """Returns the answers to all requests that were asked, one after the other, by number."""
    cases = sorted({each.case for each in visits})
    return {case: await client.ask(pool[case]) for case in cases}


def fault(visit: Visit, alone: Mapping[int, Answer]) -> list[str]:
    """Returns what is wrong with an answer, if anything.

    A request is answered in time, unless the queue is full, as the same request `alone`, by its
    number: with the same texts, calls, ends, log-probabilities and numbers of tokens; a client that
    hung up, with their beginnings.
    """
    kind, case, answer = visit
    if visit.refused:
        return []
    other = alone.get(case, Answer(error="never answered alone"))
    if error := answer.error or other.error:
        return [f"request {case}, {kind}: {error}"]
    if not answer.cancelled and answer.usage != other.usage:
        return [f"request {case}, {kind}: {answer.usage}, alone {other.usage}"]
    if not answer.cancelled and answer.choices.keys() != other.choices.keys():
        return [f"request {case}, {kind}: texts {[*answer.choices]}, alone {[*other.choices]}"]
    for index, choice in answer.choices.items():
        right = other.choices.get(index, Choice())
        if difference := _difference(choice, right, cut=answer.cancelled and not choice.finish):
            return [f"request {case}, {kind}: {difference}"]
    return []


def _difference(choice: Choice, right: Choice, *, cut: bool) -> str | None:
    """Describes the first part of a text that is wrong; of one that was cut, of its beginning."""
    for name, own in vars(choice).items():
        other = vars(right)[name][: len(own) if cut else None]
        if _same(own, other):
            continue
        if isinstance(own, list):
            pairs = enumerate(itertools.zip_longest(own, other, fillvalue="nothing"))
            place = next(n for n, pair in pairs if not _same(*pair))
            name, own, other = f"{name} from {place}", own[place:][:1], other[place:][:1]
        return f"{name} {own!r}, alone {other!r}"
    return None


def _same(one: Any, other: Any) -> bool:
    """Tells whether two parts of answers are equal, numbers but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= _ROUNDING
    if isinstance(one, dict) and isinstance(other, dict):
        return _same([*one.items()], [*other.items()])
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def leaks(metrics: Mapping[str, float], started: bool) -> list[str]:
    """Returns what is left of the requests: none runs, waits or holds pages of the KV cache, and
    a server that was started here has compiled nothing since."""
    names = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
    names += ["compilations_total"] * started
    return [f"{name} is {metrics[name]:g} in the end" for name in names if metrics.get(name)]


def growth(samples: Sequence[int]) -> list[str]:
    """Returns that memory grew: that the median of the last quarter of samples, in bytes, is above
    that of the second quarter. What a process needs once, it takes in the first one."""
    quarter = len(samples) // 4
    if quarter < 2:
        return []
    before = statistics.median(samples[quarter : 2 * quarter])
    after = statistics.median(samples[-quarter:])
    if after - before <= max(_GROWTH * before, _GROWTH_BYTES):
        return []
    return [f"the memory grew from {before / 1e6:,.0f} to {after / 1e6:,.0f} MB in the second half"]
