"""`--ttft-check`: how long short prompts wait while others are being answered.

15 clients have long texts written, all the time. Meanwhile short prompts are sent one by one. The
99th percentile of their times to the first token should not be above

    3 steps + what the same prompts take when the server has nothing else to do (median)

The second summand is the prompt's own prefill, with everything around it: HTTP, tokens to text. A
step's time is, from the server's metrics over the time of the check, the mean of what it calls
inter-token latency, which is between two steps of a text; if it does not measure that, the texts'
mean TPOT times tau: what they wait for the tokens of a verification.

On a busy machine single steps take much longer than the mean. So steps are counted as well: those
that a text got between a prompt's sending and its first token, by its chunks, which a dart_jax
server sends one by one with `--stream-interval 0`. Something is wrong if the 99th percentile is
above the bound in both ways.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eval.serving.client.completion import Answer, Reading, Request, Server, ask
from eval.serving.client.metrics import Counters
from eval.serving.comparison import wait_until_quiet
from eval.serving.server import scrape
from eval.serving.workload import Workload

# Texts that are written meanwhile, steps that a prompt may wait, and seconds until all run.
WRITERS, STEPS, _STARTING = 15, 3, 10.0
# Tokens of the short prompts and of their answers.
_PROMPT, _ANSWER = 32, 4
# Prompts that are timed alone.
_ALONE = 20


@dataclasses.dataclass(frozen=True)
class FirstTokens:
    """Times in seconds.

    Attributes:
      alone: to the first tokens, while nothing else ran.
      beside: the same beside other texts.
      steps: that were taken before each of these first tokens.
      step: of the server, beside them.
      how: where the step's time is from.
      errors: of prompts and texts.
    """

    alone: list[float]
    beside: list[float]
    steps: list[int]
    step: float
    how: str
    errors: list[str]

    @property
    def bound(self) -> float:
        """What the 99th percentile may be."""
        return STEPS * self.step + statistics.median(self.alone)

    @property
    def p99(self) -> float:
        """Of the times beside others."""
        return float(np.percentile(self.beside, 99))

    @property
    def steps_p99(self) -> float:
        """Of the steps that were taken before a first token."""
        return float(np.percentile(self.steps, 99, method="inverted_cdf"))

    @property
    def held(self) -> bool:
        """Whether the bound held, in time or in steps, and nothing failed."""
        return not self.errors and (self.p99 <= self.bound or self.steps_p99 <= STEPS)

    def __str__(self) -> str:
        return (
            f"{'ok' if self.held else 'WRONG'}: time to the first token of {len(self.beside)} "
            f"short prompts beside {WRITERS} texts: p50 {1e3 * statistics.median(self.beside):.1f} "
            f"ms, p99 {1e3 * self.p99:.1f} ms; allowed {1e3 * self.bound:.1f} ms = {STEPS} steps "
            f"of {1e3 * self.step:.1f} ms ({self.how}) + "
            f"{1e3 * statistics.median(self.alone):.1f} ms alone; steps before a first token: p50 "
            f"{statistics.median(self.steps):g}, p99 {self.steps_p99:g}, allowed {STEPS}"
            + (f"; {len(self.errors)} failed: {self.errors[0]}" if self.errors else "")
        )

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        fields = dataclasses.asdict(self)
        return {**fields, "bound": self.bound, "p99": self.p99, "held": self.held}


def check_first_tokens(
    server: Server,
    workload: Workload,
    text: np.ndarray,
    count: int,
    longest: int,
    timeout: float,
    notify: Callable[[str], None] = lambda _: None,
) -> FirstTokens:
    """Measures `count` prompts; see above.

    Args:
      server: whom to ask.
      workload: the prompts of the long texts.
      text: tokens to cut the short prompts from, int [n].
      count: of short prompts.
      longest: most tokens of a prompt and its text.
      timeout: seconds after which a request is given up.
      notify: is told what is being done.
    """
    return asyncio.run(_check(server, workload, text, count, longest, timeout, notify))


async def _check(
    server: Server,
    workload: Workload,
    text: np.ndarray,
    count: int,
    longest: int,
    timeout: float,
    notify: Callable[[str], None],
) -> FirstTokens:
    reading = Reading(timeout=timeout)
    starts = np.linspace(0, len(text) - _PROMPT, count + 2 * _ALONE).astype(int)
    prompts = [
        Request(tuple(map(int, text[start : start + _PROMPT])), _ANSWER, ignore_eos=True)
        for start in starts
    ]
    notify("short prompts alone")
    await wait_until_quiet(server)
    alone = [await ask(server, prompt, reading) for prompt in prompts[: 2 * _ALONE]]
    notify(f"short prompts beside {WRITERS} texts")
    written: list[Answer] = []

    async def write(number: int) -> None:
        while not any(answer.error for answer in written):
            short = workload.request(number)
            tokens = longest - len(short.prompt)
            request = dataclasses.replace(short, max_tokens=tokens, ignore_eos=True)
            written.append(Answer())
            await ask(server, request, reading, answer=written[-1])
            number += WRITERS

    writers = [asyncio.create_task(write(number)) for number in range(WRITERS)]
    try:
        await _until_running(server)
        before = await scrape(server)
        beside = [await ask(server, prompt, reading) for prompt in prompts[2 * _ALONE :]]
        after = await scrape(server)
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    counters = Counters.between(before, after)
    if counters.gaps and counters.gap_seconds:
        step, how = counters.gap_seconds / counters.gaps, "mean inter-token latency"
    else:
        step, how = (counters.tau or 1.0) * _mean_tpot(written, beside), "mean TPOT times tau"
    answers = [*alone, *beside, *written]
    return FirstTokens(
        [answer.ttft for answer in alone[_ALONE:]],
        [answer.ttft for answer in beside],
        [_steps_before(answer, written) for answer in beside],
        step,
        how,
        [answer.error for answer in answers if answer.error],
    )


def _steps_before(answer: Answer, written: Sequence[Answer]) -> int:
    """Chunks that came between a prompt's sending and its first token, of the text with the most:
    those of a step may hold no text yet."""
    first = answer.times[0] if answer.times else answer.end
    counts = [bisect_right(o.times, first) - bisect_right(o.times, answer.sent) for o in written]
    return max(counts, default=0)


async def _until_running(server: Server) -> None:
    """Waits until all texts are being written; for one second if the server does not tell."""
    end = time.monotonic() + _STARTING
    while time.monotonic() < end:
        counters = await scrape(server)
        if counters is None or counters.running is None:
            await asyncio.sleep(1)
            return
        if counters.running >= WRITERS:
            return
        await asyncio.sleep(0.02)


def _mean_tpot(*several: Sequence[Answer]) -> float:
    """Over all answers that tell it; the last resort is none."""
    known = [tpot for some in several for answer in some if (tpot := answer.tpot) is not None]
    return statistics.fmean(known) if known else 0.0
