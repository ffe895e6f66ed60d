"""A soak from its start to its report."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client.completion import Answer, Reading, Request, Server, ask
from eval.serving.client.connection import fetch
from eval.serving.comparison import wait_until_quiet
from eval.serving.config import ServingBenchConfig
from eval.serving.server import Process, resident_memory
from eval.serving.soak import checks
from eval.serving.soak.checks import Check
from eval.serving.soak.pool import make_pool, malformed
from eval.serving.soak.visits import Visit, visit
from eval.serving.workload import library_tokens

# Requests that are also answered by `DartModel.generate`, and slots of a server's default.
_GENERATED, _SLOTS = 8, 16
# Seconds between samples of the memory.
_SAMPLE = 0.5


@dataclasses.dataclass(frozen=True)
class Soak:
    """What came of a soak.

    Attributes:
      visits: what clients did.
      memory: resident bytes of the server over time; empty if it was not started here.
      checks: what held, and what did not.
    """

    visits: list[Visit]
    memory: list[int]
    checks: list[Check]

    @property
    def held(self) -> bool:
        """Whether nothing was wrong."""
        return all(check.held is not False for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "visits": len(self.visits),
            "tokens": sum(each.answer.tokens or 0 for each in self.visits),
            "memory": self.memory,
            "checks": [check._asdict() for check in self.checks],
        }


def run_soak(
    config: ServingBenchConfig,
    server: Server,
    process: Process | None,
    tokenizer: Tokenizer,
    notify: Callable[[str], None] = lambda _: None,
) -> Soak:
    """Soaks a server, then checks what it did.

    Args:
      config: the options.
      server: whom to ask.
      process: of the server, if it was started here.
      tokenizer: the target's.
      notify: is told what is being done.
    """
    assert config.soak is not None
    pool = make_pool(library_tokens(tokenizer), config.pool, config.longest, config.seed)
    return asyncio.run(_soak(config, server, process, pool, notify))


async def _soak(
    config: ServingBenchConfig,
    server: Server,
    process: Process | None,
    pool: Sequence[Request],
    notify: Callable[[str], None],
) -> Soak:
    wrong = malformed(server.model, 10**5)
    clients, seconds = max(config.clients), config.soak or 0.0
    notify(f"{clients} clients ask for {seconds:g} s")
    memory: list[int] = []
    sampling = asyncio.create_task(_sample(process, memory))
    try:
        visits = await visit(server, pool, wrong, clients, seconds, config.timeout, config.seed)
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
    counters = await wait_until_quiet(server)
    notify("asking every request alone")
    asked = sorted({each.number for each in visits if each.kind != "malformed"})
    reading = Reading(timeout=config.timeout)
    references = {number: await ask(server, pool[number], reading) for number in asked}
    found = [
        checks.check_errors(visits),
        checks.check_malformed(visits, wrong),
        checks.check_texts(visits, references),
        checks.check_leaks(counters),
        checks.check_memory(memory),
        checks.check_fairness(visits, config.slots or _SLOTS),
        await _alive(server, process),
    ]
    if process is not None:
        found.append(checks.check_compilations(counters))
        notify("generating some of the texts in this process")
        some = [asked[n] for n in np.linspace(0, len(asked) - 1, _GENERATED).astype(int)]
        found.append(_check_generated(config, pool, some, references))
    return Soak(visits, memory, found)


async def _sample(process: Process | None, memory: list[int]) -> None:
    while process is not None:
        if (resident := resident_memory(process.pid)) is not None:
            memory.append(resident)
        await asyncio.sleep(_SAMPLE)


async def _alive(server: Server, process: Process | None) -> Check:
    what = "the server is alive"
    if process is not None and not process.running:
        return Check(what, False, f"it ended: {process.last_line}")
    try:
        status, _ = await fetch(server.address, "/health")
    except OSError as error:
        return Check(what, False, f"/health: {error}")
    return Check(what, status == 200, f"/health answers with status {status}")


def _check_generated(
    config: ServingBenchConfig,
    pool: Sequence[Request],
    numbers: Sequence[int],
    references: dict[int, Answer],
) -> Check:
    model = config.load()
    expected = {}
    for number in dict.fromkeys(numbers):
        request = pool[number]
        expected[number] = model.generate(
            list(request.prompt),
            max_new_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            stop=list(request.stop),
            eos_token_id=() if request.ignore_eos else None,
        ).text
    return checks.check_generated(expected, references)
