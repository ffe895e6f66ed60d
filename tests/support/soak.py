"""Clients that ask one server at random, and what is wrong with their answers.

They stream, take answers whole, or hang up. Each request asked alone has the right answer."""

import asyncio
import time
from typing import NamedTuple

import numpy as np

from eval.serving.client import Answer, Choice

# How a client behaves, and how often. A twin comes beside the same request, which is cancelled.
_KINDS = {"streamed": 0.4, "whole": 0.3, "cancelled": 0.2, "twin": 0.1}
# Of log-probabilities: logits are the same bits, but what they are divided by is summed in another
# order beside other rows.
_ROUNDING = 1e-5


class Visit(NamedTuple):
    """One request of a client: one of `_KINDS`, its number in the pool, and the outcome."""

    kind: str
    case: int
    answer: Answer

    @property
    def refused(self):
        """Whether the server had no room in its queue."""
        return self.answer.status == 429


async def visit(client, pool, clients, seconds, count, seed):
    """Lets clients ask at random for requests of a pool, each for some seconds and a number of
    times at most; returns the visits."""
    visits, end = [], time.perf_counter() + seconds

    async def one(rng, kind, case):
        stream = kind == "streamed" or (kind != "whole" and rng.random() < 0.5)
        # From 1 ms to 3 s: also while the request waits, or its prompt is read.
        patience = 10 ** rng.uniform(-3, 0.5) if kind == "cancelled" else None
        stream &= "prompt_logprobs" not in pool[case]  # which are not streamed
        return Visit(kind, case, await client.ask(pool[case], stream=stream, patience=patience))

    async def run_client(number):
        rng, asked = np.random.default_rng([seed, number]), 0
        while time.perf_counter() < end and asked < count:
            kind, case = rng.choice([*_KINDS], p=[*_KINDS.values()]), int(rng.integers(len(pool)))
            kinds = [kind, "cancelled"] if kind == "twin" else [kind]
            visits.extend(await asyncio.gather(*(one(rng, each, case) for each in kinds)))
            asked += len(kinds)
            await asyncio.sleep(rng.uniform(0, 0.05) + visits[-1].refused)

    await asyncio.gather(*map(run_client, range(clients)))
    return visits


async def ask_alone(client, pool, visits):
    """The answers to all requests that were asked, one after the other, by number."""
    return {case: await client.ask(pool[case]) for case in sorted({each.case for each in visits})}


def fault(visit, alone):
    """What is wrong with an answer, if anything.

    A request is answered in time, unless the queue is full, as the same request `alone`, by its
    number: with the same texts, calls, ends, log-probabilities and numbers of tokens; a client that
    hung up, with their beginnings.
    """
    kind, case, answer = visit
    other = alone.get(case, Answer(error="never answered alone"))
    if visit.refused:
        return []
    if error := answer.error or other.error:
        return [f"request {case}, {kind}: {error}"]
    if not answer.cancelled and answer.usage != other.usage:
        return [f"request {case}, {kind}: {answer.usage}, alone {other.usage}"]
    if not answer.cancelled and answer.choices.keys() != other.choices.keys():
        return [f"request {case}, {kind}: texts {[*answer.choices]}, alone {[*other.choices]}"]
    for index, choice in answer.choices.items():
        cut = answer.cancelled and not choice.finish
        for name, own in vars(choice).items():
            right = vars(other.choices.get(index, Choice()))[name][: len(own) if cut else None]
            if not _same(own, right):
                return [f"request {case}, {kind}: {name} {own!r}, alone {right!r}"]
    return []


def _same(one, other):
    """Whether two parts of answers are equal, numbers but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= _ROUNDING
    if isinstance(one, dict) and isinstance(other, dict):
        return _same([*one.items()], [*other.items()])
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other
