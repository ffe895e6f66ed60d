"""Clients of a soak: each asks again and again, in one of several ways."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from eval.serving.client.completion import Answer, Reading, Request, Server, ask
from eval.serving.client.connection import connection
from eval.serving.soak.pool import Malformed

# How a client behaves, and how often.
Kind = Literal["streamed", "at once", "cancelled", "slow", "malformed"]
_KINDS: dict[Kind, float] = {
    "streamed": 0.5,
    "at once": 0.15,
    "cancelled": 0.15,
    "slow": 0.1,
    "malformed": 0.1,
}
# Longest pause of a slow reader after a chunk, and of a client between two requests.
_SLOWEST, _IDLE = 0.2, 0.05
# A full queue: the client waits and asks something else.
_REFUSED = (429, 503)


class Visit(NamedTuple):
    """One request of a client.

    Attributes:
      kind: how it behaved.
      number: of the request in the pool, or among the malformed ones.
      answer: what came of it.
    """

    kind: Kind
    number: int
    answer: Answer

    @property
    def refused(self) -> bool:
        """Whether the server had no room in its queue."""
        return self.answer.status in _REFUSED


async def visit(
    server: Server,
    pool: Sequence[Request],
    wrong: Sequence[Malformed],
    clients: int,
    seconds: float,
    timeout: float,
    seed: int,
) -> list[Visit]:
    """Lets clients ask for some time; returns everything that they did, in order of its end."""
    visits: list[Visit] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        while time.perf_counter() < end:
            kind = rng.choice(list(_KINDS), p=list(_KINDS.values()))
            if kind == "malformed":
                place = int(rng.integers(len(wrong)))
                answer = await _send(server, wrong[place], timeout)
            else:
                place = int(rng.integers(len(pool)))
                answer = await ask(server, pool[place], _reading(kind, rng, timeout))
            visits.append(Visit(kind, place, answer))
            await asyncio.sleep(rng.uniform(0, _IDLE) + visits[-1].refused)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    return visits


def _reading(kind: Kind, rng: np.random.Generator, timeout: float) -> Reading:
    if kind == "at once":
        return Reading(stream=False, timeout=timeout)
    if kind == "cancelled":
        # Also before the first chunk: then it hangs up while it waits or the prompt is read.
        return Reading(cancel_after=int(rng.integers(0, 12)), timeout=timeout)
    if kind == "slow":
        return Reading(pause=rng.uniform(0.01, _SLOWEST), timeout=timeout)
    return Reading(timeout=timeout)


async def _send(server: Server, wrong: Malformed, timeout: float) -> Answer:
    """Sends a malformed request; the text of the answer is the body."""
    answer = Answer(start=time.perf_counter())
    try:
        async with asyncio.timeout(timeout), connection(server.address) as opened:
            await opened.send(wrong.method, wrong.path, wrong.body)
            answer.status = opened.status
            answer.text = (await opened.body()).decode("utf-8", "replace")
    except OSError as error:  # TimeoutError is one
        answer.error = f"{type(error).__name__}: {error}"
    answer.end = time.perf_counter()
    return answer
