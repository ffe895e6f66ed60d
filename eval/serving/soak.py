"""`--soak`: one server under requests of every kind, and what must hold afterwards.

Clients ask at random for some time: they stream, take answers whole, or hang up. Then each request
is asked alone, and its text must be the same.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.tables import table
from dart_jax.progress import stage
from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client import Answer, Client
from eval.serving.config import ServingBenchConfig
from eval.serving.requests import Body, soak_requests
from eval.serving.servers import connected

# How a client behaves, and how often.
_KINDS = {"streamed": 0.5, "whole": 0.2, "cancelled": 0.3}
# Different requests.
_POOL = 96
# Seconds between samples of the memory; its growth in the second half: a share, and bytes.
_SAMPLE, _GROWTH, _GROWTH_BYTES = 0.5, 0.02, 2**24


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
    pool = soak_requests(tokenizer, _POOL, config.seed)
    clients, seconds, memory = max(config.clients), 60 * config.soak, list[int]()
    with stage("", console) as notify:
        options = {"soaked": config.server_options()}
        async with connected(config, options, notify) as (servers, pids):
            [client] = servers.values()
            notify(f"{clients} clients ask for {seconds:g} s")
            sampling = asyncio.create_task(_sample(pids, memory))
            visits = await _visits(client, pool, clients, seconds, config.seed)
            sampling.cancel()
            notify("asking every request alone")
            cases = {each.case for each in visits}
            try:
                metrics = await client.quiet_metrics()
                alone = {case: await client.ask(pool[case]) for case in sorted(cases)}
                faults = leaks(metrics, started=bool(pids))
            except UserError as error:
                alone, faults = {}, [str(error)]
    faults += [*growth(memory), *(text for each in visits for text in fault(each, alone))]
    kinds = Counter("refused" if each.refused else each.kind for each in visits)
    rows = [[f"requests: {kind}", f"{count:,}"] for kind, count in kinds.most_common()]
    if memory:
        rows.append(["memory, MB", f"{memory[0] / 1e6:,.0f} to {max(memory) / 1e6:,.0f}"])
    rows.append(["faults", str(len(faults))])
    printed = table(f"{clients} clients for {config.soak:g} minutes", ("", ""), rows)
    console.print(printed)
    for line in faults[:20]:
        console.print(line, highlight=False, soft_wrap=True)
    title = f"A soaked server of {config.title}"
    return {
        "title": title,
        "tables": [printed],
        "requests": kinds,
        "memory": memory,
        "faults": faults,
    }


async def _visits(
    client: Client, pool: Sequence[Body], clients: int, seconds: float, seed: int
) -> list[Visit]:
    visits: list[Visit] = []
    end = time.perf_counter() + seconds

    async def one(kind: str, rng: np.random.Generator) -> Visit:
        number = int(rng.integers(len(pool)))
        # From 1 ms to 3 s: also while the request waits, or its prompt is read.
        patience = 10 ** rng.uniform(-3, 0.5) if kind == "cancelled" else None
        answer = await client.ask(pool[number], stream=kind != "whole", patience=patience)
        return Visit(kind, number, answer)

    async def run_client(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        while time.perf_counter() < end:
            visits.append(await one(rng.choice(list(_KINDS), p=list(_KINDS.values())), rng))
            await asyncio.sleep(rng.uniform(0, 0.05) + visits[-1].refused)

    await asyncio.gather(*map(run_client, range(clients)))
    return visits


async def _sample(pids: Sequence[int], memory: list[int]) -> None:
    """Appends the resident bytes of the servers that were started, as far as Linux tells them."""
    while statm := [path for pid in pids if (path := Path(f"/proc/{pid}/statm")).exists()]:
        pages = sum(int(path.read_text().split()[1]) for path in statm)
        memory.append(pages * os.sysconf("SC_PAGE_SIZE"))
        await asyncio.sleep(_SAMPLE)


def fault(visit: Visit, alone: Mapping[int, Answer]) -> list[str]:
    """Returns what is wrong with an answer, if anything.

    A request is answered in time, unless the queue is full, with the text of the same request
    `alone`, by its number; of a client that hung up, its beginning.
    """
    kind, case, answer = visit
    if visit.refused:
        return []
    other = alone.get(case, Answer(error="never answered alone"))
    if error := answer.error or other.error:
        return [f"request {case}, {kind}: {error}"]
    if answer.cancelled:
        right = other.text.startswith(answer.text)
    else:
        parts = [(each.text, each.finish, each.tokens) for each in (answer, other)]
        right = parts[0] == parts[1]
    return [] if right else [f"request {case}, {kind}: {answer.text!r}, alone {other.text!r}"]


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
