"""One server under hostile grammars, and what others get of it meanwhile.

Clients send grammars, and some of them hang up; two others ask for a token and for the server's
health all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import numpy as np
from hostile_grammars import Hostile

from eval.serving.client import Answer, Client

# Clients with grammars, and the share of grammars after which one hangs up.
_CLIENTS, _GONE = 4, 0.25
# Seconds between the requests of others.
_PAUSE = 0.05

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


async def prepare(client: Client) -> None:
    """Lets a server take what it needs once: programs, and the first grammar."""
    for count in (1, _CLIENTS):
        bodies = [_PLAIN, *[_MILD] * count]
        for answer in await asyncio.gather(*map(client.ask, bodies)):
            assert not answer.error, answer.error


async def besiege(client: Client, requests: Sequence[Hostile], seed: int) -> Siege:
    """Sends hostile requests from several clients, and meanwhile asks as others do.

    Args:
      client: asks the server.
      requests: all of them, each once.
      seed: of who hangs up, and when.
    """
    siege, left, over = Siege([], [], []), iter(requests), asyncio.Event()

    async def hostile(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        for each in left:
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

    plain, health = (lambda: client.ask(_PLAIN)), (lambda: _health(client))
    others = other(plain, siege.plain), other(health, siege.health)
    await asyncio.gather(grammars(), *others)
    return siege


async def _health(client: Client) -> Answer:
    """The outcome of asking the server whether it is alive, without texts."""
    answer = Answer(start=time.perf_counter())
    answer.status = (await client.http.get("/health", timeout=client.timeout)).status_code
    answer.error = "" if answer.status == 200 else f"status {answer.status}"
    answer.end = time.perf_counter()
    return answer


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
