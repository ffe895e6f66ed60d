"""`--delays`: what the users of a server wait for, each time beside what it is compared with."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
from typing import Any

import numpy as np
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.spread import spread
from dart_jax.programs.tables import narrow
from dart_jax.progress import stage
from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client import Answer, Body, Client
from eval.serving.config import ServingBenchConfig
from eval.serving.servers import connected, library_tokens

# Milliseconds, by name.
Delays = dict[str, float]

# Texts of one prompt, their length and the prompt's.
_TEXTS, _TEXT, _PROMPT = 200, 16, 31
# Streams, their length, and the longest prompt beside them.
_STREAMS, _STREAM, _LONG = 4, 300, 3000
# Beginnings that several prompts share, below and above a page, and what follows.
_SHARED, _OWN = (50, 250), 12

_CAPTION = (
    "ms, medians of the rounds ± half their range. first: to the first token. gaps: between two "
    "chunks of a stream, alone and while a long prompt is read"
)


class Prompts:
    """Pieces of library code, each another one; raises UserError if there is none."""

    def __init__(self, tokenizer: Tokenizer, seed: int):
        self._text, self._rng = library_tokens(tokenizer), np.random.default_rng(seed)

    def __call__(self, length: int) -> list[int]:
        """Tokens of the next piece."""
        start = int(self._rng.integers(len(self._text) - length))
        # A first token of its own, so that none begins as another one.
        first = self._rng.integers(len(self._text))
        return [int(self._text[first]), *self._text[start + 1 : start + length].tolist()]


async def run(config: ServingBenchConfig, tokenizer: Tokenizer, console: Console) -> dict[str, Any]:
    """Measures the server that is started, or those of --url in turn, and prints the table; returns
    a report. Raises UserError if a file is missing, or a server does not start or answer."""
    rounds: dict[str, list[Delays]] = {}
    with stage("", console) as notify:
        options = {"server": config.server_options()}
        async with connected(config, options, notify) as servers:
            for turn in range(-1, config.rounds):
                for name, client in servers.items():
                    prompts = Prompts(tokenizer, config.seed + turn + 1)
                    notify(f"{name}: round {turn + 1}" if turn >= 0 else f"{name}: warm-up")
                    done = await measure(client, prompts)
                    if turn >= 0:
                        rounds.setdefault(name, []).append(done)
    names = list(next(iter(rounds.values()))[0])
    rows = [
        [name, *(spread([each[name] for each in all_]) for all_ in rounds.values())]
        for name in names
    ]
    printed = narrow("Delays", ["", *rounds], rows, _CAPTION)
    console.print(printed)
    title = f"What users of {config.title} wait for"
    return {"title": title, "tables": [printed], "rounds": rounds}


async def measure(client: Client, prompts: Prompts) -> Delays:
    """One round of all delays."""
    delays: Delays = {}
    for length in (33, 40):
        delays[f"first, {length} tokens"] = await _first(client, prompts(length))
    for length in _SHARED:
        shared = prompts(length)
        for name in ("first", "second"):
            prompt = shared + prompts(_OWN)
            delays[f"{name} of a chat after {length} shared tokens"] = await _first(client, prompt)
    several = body(prompts(_PROMPT), _TEXT) | {"n": _TEXTS, "temperature": 1.0}
    answer = checked(await client.ask(several))
    delays[f"{_TEXTS} texts of {_PROMPT} tokens"] = 1e3 * (answer.end - answer.start)
    return delays | await _beside(client, prompts)


def body(prompt: list[int], tokens: int) -> Body:
    """A request for so many greedy tokens."""
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def checked(answer: Answer) -> Answer:
    """Returns an answer; raises UserError if it failed."""
    if answer.error:
        raise UserError(f"the server does not answer: {answer.error}")
    return answer


async def _first(client: Client, prompt: list[int]) -> float:
    """Milliseconds to the first token."""
    answer = checked(await client.ask(body(prompt, 2), stream=True))
    return 1e3 * (answer.first or 0.0)


async def _beside(client: Client, prompts: Prompts) -> Delays:
    """The gaps of streams beside a long prompt, and how long that and a short one take."""
    length = min(_LONG, client.max_length - 10) if client.max_length else _LONG
    alone = await _first(client, prompts(length))
    bodies = [body(prompts(_PROMPT), _STREAM) for _ in range(_STREAMS)]
    streams = [asyncio.create_task(client.ask(each, stream=True)) for each in bodies]
    await asyncio.sleep(0.4)
    long = asyncio.create_task(client.ask(body(prompts(length), 2), stream=True))
    await asyncio.sleep(0.2)
    short = await _first(client, prompts(_PROMPT))
    begin, end = checked(await long).start, (await long).times[0]
    answers = [checked(await stream) for stream in streams]
    gaps = {"alone": list[float](), "beside": list[float]()}
    for a, b in (pair for answer in answers for pair in itertools.pairwise(answer.times)):
        gaps["beside" if begin < b and a < end else "alone"].append(1e3 * (b - a))
    delays: Delays = {}
    for name, each in gaps.items():
        delays[f"gaps {name}, median"] = statistics.median(each or [math.nan])
        delays[f"gaps {name}, longest"] = max(each, default=math.nan)
    return delays | {
        f"first, {length} tokens": alone,
        f"first, {length} tokens beside streams": 1e3 * (end - begin),
        f"first, {_PROMPT} tokens beside both": short,
    }
