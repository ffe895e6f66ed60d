"""Loads: how many requests are under way, and when each begins.

Closed loop: N clients, each of which sends its next request when its last one has ended. A server
that slows down gets fewer requests. Open loop: requests arrive at random, at a rate, whatever the
server does, and latency counts from the planned arrival: a generator that is late hides nothing
(G. Tene, "How not to measure latency", 2013).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from eval.serving.client.completion import Answer, Request

# Sends a request; the number is when it should have been sent, if that was planned.
Ask = Callable[[Request, float | None], Awaitable[Answer]]


async def closed_loop(ask: Ask, requests: Sequence[Request], clients: int) -> list[Answer]:
    """Sends all requests, `clients` at a time; returns the answers in the requests' order."""
    answers: dict[int, Answer] = {}
    left = iter(enumerate(requests))

    async def client() -> None:
        for number, request in left:
            answers[number] = await ask(request, None)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(clients, len(requests))):
            group.create_task(client())
    return [answers[number] for number in range(len(requests))]


async def open_loop(
    ask: Ask, requests: Sequence[Request], arrivals: Sequence[float]
) -> list[Answer]:
    """Sends every request at its time, in seconds from now; returns the answers in order."""
    began = time.perf_counter()

    async def client(request: Request, arrival: float) -> Answer:
        await asyncio.sleep(began + arrival - time.perf_counter())
        return await ask(request, began + arrival)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(client(request, arrival))
            for request, arrival in zip(requests, arrivals, strict=True)
        ]
    return [task.result() for task in tasks]


def poisson_arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Times of `count` arrivals, in seconds, of a Poisson process with `rate` arrivals a second."""
    gaps = np.random.default_rng([seed, count]).exponential(1 / rate, count)
    return np.cumsum(gaps).tolist()
