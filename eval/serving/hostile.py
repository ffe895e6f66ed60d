"""`--hostile`: one server under hostile grammars, and what others get of it meanwhile.

Clients send grammars, and some of them hang up; two others ask for a token and for the server's
health all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.tables import table
from dart_jax.progress import stage
from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client import Answer, Client
from eval.serving.config import ServingBenchConfig
from eval.serving.grammars import Hostile, hostile_requests
from eval.serving.servers import connected, memory_of, sample

# Clients with grammars, and the share of grammars after which one hangs up.
_CLIENTS, _GONE = 4, 0.25
# Seconds that others wait at most, and between their requests.
_PATIENCE, _PAUSE = 2.0, 0.05
# Bytes that may stay in memory, of grammars that are kept; the seconds that the rest may stay.
_KEPT, _SETTLE = 2**29, 5.0

_PLAIN = {"prompt": "def ", "max_tokens": 1, "temperature": 0}
_MILD = {"prompt": "def ", "max_tokens": 4, "regex": "[ab]{4}"}


class Siege(NamedTuple):
    """What came of hostile requests.

    Attributes:
      answers: to each of them.
      plain: answers to requests for a token meanwhile.
      health: answers to questions for the health meanwhile.
    """

    answers: list[tuple[Hostile, Answer]]
    plain: list[Answer]
    health: list[Answer]

    def faults(self, patience: float) -> list[str]:
        """Returns what is wrong, if anything: a grammar is neither used nor refused in a line, or
        others are not answered within these seconds."""
        found = [
            f"{each.name}: {answer.error}"
            for each, answer in self.answers
            if outcome_of(answer) == "failed"
        ]
        for name, answers in (("a plain request", self.plain), ("health", self.health)):
            errors = Counter(answer.error for answer in answers if answer.error)
            found += [f"{name}: {error}, {count} times" for error, count in errors.items()]
            if (longest := longest_of(answers)) > patience:
                found.append(f"{name} took {longest:.1f} s beside grammars")
        return found


async def run(config: ServingBenchConfig, tokenizer: Tokenizer, console: Console) -> dict[str, Any]:
    """Sends a server hostile grammars and prints its faults; returns a report, with the `faults`.

    Raises:
      UserError: a file is missing, or the server does not start or answer before.
    """
    assert config.hostile is not None
    chats = bool(tokenizer.chat_template)
    requests = hostile_requests(config.hostile, config.seed, chats=chats)
    memory = list[int]()
    with stage("", console) as notify:
        options = {"besieged": config.server_options()}
        async with connected(config, options, notify) as (servers, pids):
            [client] = servers.values()
            await prepare(client)
            before = memory_of(pids)
            sampling = asyncio.create_task(sample(pids, memory))
            siege = await besiege(client, requests, config.seed, notify)
            sampling.cancel()
            faults = siege.faults(_PATIENCE)
            try:
                await client.quiet_metrics()
            except UserError as error:
                faults.append(str(error))
            await asyncio.sleep(_SETTLE)
            after = memory_of(pids)
    if after > before + _KEPT:
        faults.append(f"{(after - before) / 1e6:,.0f} MB stay in memory afterwards")
    outcomes = Counter(outcome_of(answer) for _, answer in siege.answers)
    rows = [[f"grammars: {outcome}", f"{count:,}"] for outcome, count in outcomes.most_common()]
    every = {"grammar": [answer for _, answer in siege.answers]}
    every |= {"plain request": siege.plain, "health": siege.health}
    rows += [[f"longest {name}, s", f"{longest_of(each):.2f}"] for name, each in every.items()]
    if memory:
        sizes = (f"{count / 1e6:,.0f}" for count in (before, max(memory), after))
        rows.append(["memory before, most and after, MB", ", ".join(sizes)])
    rows.append(["faults", str(len(faults))])
    printed = table(f"{len(requests):,} hostile grammars", ("", ""), rows)
    console.print(printed)
    for line in faults[:20]:
        console.print(line, highlight=False, soft_wrap=True)
    return {
        "title": f"A server of {config.title} under hostile grammars",
        "tables": [printed],
        "grammars": [
            {"grammar": each.name, "bytes": len(each.content), "seconds": answer.end - answer.start}
            | {"status": answer.status, "error": answer.error}
            for each, answer in siege.answers
        ],
        "faults": faults,
    }


async def prepare(client: Client) -> None:
    """Lets a server take what it needs once: programs, and the first grammar; raises UserError if
    it does not answer."""
    for count in (1, _CLIENTS):
        bodies = [_PLAIN, *[_MILD] * count]
        for answer in await asyncio.gather(*map(client.ask, bodies)):
            if answer.error:
                raise UserError(f"the server does not answer: {answer.error}")


async def besiege(
    client: Client, requests: Sequence[Hostile], seed: int, notify: Callable[[str], None]
) -> Siege:
    """Sends hostile requests from several clients, and meanwhile asks as others do.

    Args:
      client: asks the server.
      requests: all of them, each once.
      seed: of who hangs up, and when.
      notify: receives what is going on.
    """
    siege, left, over = Siege([], [], []), iter(requests), asyncio.Event()

    async def hostile(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        for each in left:
            notify(f"{len(siege.answers)} of {len(requests)}: {each.name}")
            # From 10 ms to 3 s: also while a grammar is compiled.
            patience = 10 ** rng.uniform(-2, 0.5) if rng.random() < _GONE else None
            answer = await client.send(each.path, each.content, patience=patience)
            siege.answers.append((each, answer))

    async def other(ask: Callable[[], Awaitable[Answer]], answers: list[Answer]) -> None:
        # Also when all is over, since then the server should still be there.
        last = False
        while not last:
            last = over.is_set()
            answers.append(await ask())
            await asyncio.sleep(_PAUSE)

    async def grammars() -> None:
        await asyncio.gather(*map(hostile, range(_CLIENTS)))
        over.set()

    others = other(lambda: client.ask(_PLAIN), siege.plain), other(client.health, siege.health)
    await asyncio.gather(grammars(), *others)
    return siege


def outcome_of(answer: Answer) -> str:
    """Returns in a word what came of a grammar; `failed` is a fault."""
    if answer.cancelled:
        return "left"
    if answer.status == 400:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            message = json.loads(answer.error.partition(": ")[2])["error"]["message"]
            return "refused" if message and "\n" not in message else "failed"
    return "failed" if answer.error else "used"


def longest_of(answers: Sequence[Answer]) -> float:
    """Returns the seconds of the slowest answer; 0 without one."""
    return max((answer.end - answer.start for answer in answers), default=0.0)
