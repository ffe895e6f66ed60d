"""What a load's rounds say of one server: percentiles, throughput, goodput."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from eval.serving.client.completion import Answer
from eval.serving.client.metrics import Counters

PERCENTILES = (50, 90, 99)


class Load(NamedTuple):
    """How many requests are under way: a number of clients, or arrivals a second."""

    clients: int | None
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.clients}" if self.rate is None else f"{self.rate:g}/s"


class Slo(NamedTuple):
    """What a request may take: seconds to its first token, and for each other one."""

    ttft: float
    tpot: float

    def met(self, answer: Answer) -> bool:
        """Whether a request was answered within these times."""
        tpot = answer.tpot
        return answer.complete and answer.ttft <= self.ttft and (tpot is None or tpot <= self.tpot)


@dataclasses.dataclass(frozen=True)
class Round:
    """One measurement of a load.

    Attributes:
      answers: to all its requests, in their order.
      seconds: from the first request to the last token.
      counters: what was added to the server's; all None if it has none.
      client_cpu: processor time of the generator over the wall time.
      streamed: whether tokens came one by one; otherwise only latencies of whole answers count.
    """

    answers: list[Answer]
    seconds: float
    counters: Counters
    client_cpu: float
    streamed: bool = True

    @property
    def complete(self) -> list[Answer]:
        """Answers that ended well."""
        return [answer for answer in self.answers if answer.complete]

    @property
    def token_rate(self) -> float:
        """New tokens a second, of requests that ended well."""
        return sum(answer.tokens or 0 for answer in self.complete) / self.seconds

    @property
    def request_rate(self) -> float:
        """Requests a second that ended well."""
        return len(self.complete) / self.seconds

    def goodput(self, slo: Slo) -> float:
        """Requests a second within the SLO."""
        return sum(map(slo.met, self.answers)) / self.seconds

    @property
    def tpot(self) -> float | None:
        """Median seconds per output token; None if no answer tells it."""
        known = [tpot for answer in self.complete if (tpot := answer.tpot) is not None]
        return statistics.median(known) if known and self.streamed else None

    @property
    def ttft(self) -> float | None:
        """Median seconds to the first token; None if no answer tells it."""
        known = [answer.ttft for answer in self.complete]
        return statistics.median(known) if known and self.streamed else None


def percentiles(values: Sequence[float]) -> list[float] | None:
    """The `PERCENTILES`, interpolated linearly; None without values."""
    return np.percentile(values, PERCENTILES).tolist() if len(values) else None


@dataclasses.dataclass(frozen=True)
class Summary:
    """All rounds of a load on one server.

    Attributes:
      way: the server's name.
      load: the load.
      rounds: in order.
      same: answers with the text of the first server's, and of how many; None for the first.
    """

    way: str
    load: Load
    rounds: list[Round]
    same: tuple[int, int] | None = None

    @property
    def complete(self) -> list[Answer]:
        """Answers that ended well, of all rounds."""
        return [answer for each in self.rounds for answer in each.complete]

    @property
    def errors(self) -> list[str]:
        """What went wrong."""
        answers = (answer for each in self.rounds for answer in each.answers)
        return [answer.error for answer in answers if answer.error]

    @property
    def counters(self) -> Counters:
        """What was added to the server's counters in all rounds."""
        return Counters.sum(each.counters for each in self.rounds)

    @property
    def times(self) -> dict[str, list[float] | None]:
        """Percentiles in seconds, over the requests of all rounds; of ITL over all chunks."""
        complete = self.complete
        streamed = complete if all(each.streamed for each in self.rounds) else []
        tpot = [tpot for answer in streamed if (tpot := answer.tpot) is not None]
        return {
            "ttft": percentiles([answer.ttft for answer in streamed]),
            "tpot": percentiles(tpot),
            "itl": percentiles([gap for answer in streamed for gap in answer.itl]),
            "latency": percentiles([answer.latency for answer in complete]),
        }

    @property
    def chunk_tokens(self) -> float | None:
        """Mean tokens of a chunk."""
        chunks = sum(len(answer.times) for answer in self.complete)
        streamed = all(each.streamed for each in self.rounds)
        tokens = sum(answer.tokens or 0 for answer in self.complete)
        return tokens / chunks if chunks and streamed else None

    @property
    def late(self) -> float:
        """Seconds by which the latest request was sent after its planned arrival."""
        answers = [answer for each in self.rounds for answer in each.answers]
        return max((answer.sent - answer.start for answer in answers), default=0.0)

    def token_ratios(self, other: Summary) -> list[float]:
        """Tokens a second over another server's, round by round."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return [one.token_rate / two.token_rate for one, two in pairs if two.token_rate]

    def ratios(self, other: Summary, time: Literal["tpot", "ttft"]) -> list[float]:
        """Another server's median time over this one's, round by round."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        times = [(getattr(one, time), getattr(two, time)) for one, two in pairs]
        return [two / one for one, two in times if one and two]

    def as_json(self, slo: Slo, first: Summary) -> dict[str, Any]:
        """Everything, with ratios of the first server's figures to this one's."""
        return {
            "server": self.way,
            "clients": self.load.clients,
            "rate": self.load.rate,
            "requests": sum(len(each.answers) for each in self.rounds),
            "prompt_tokens": sum(answer.prompt_tokens for answer in self.complete),
            "tokens": sum(answer.tokens or 0 for answer in self.complete),
            "errors": self.errors,
            "percentiles": PERCENTILES,
            "seconds": self.times,
            "tokens_per_chunk": self.chunk_tokens,
            "tau": self.counters.tau,
            "prefix_reused": self.counters.reused,
            "counters": self.counters.as_json(),
            "same": self.same,
            "late": self.late,
            "token_ratios": first.token_ratios(self),
            "tpot_ratios": first.ratios(self, "tpot"),
            "ttft_ratios": first.ratios(self, "ttft"),
            "rounds": [
                {
                    "seconds": each.seconds,
                    "token_rate": each.token_rate,
                    "request_rate": each.request_rate,
                    "goodput": each.goodput(slo),
                    "tpot": each.tpot,
                    "ttft": each.ttft,
                    "client_cpu": each.client_cpu,
                    "tau": each.counters.tau,
                }
                for each in self.rounds
            ],
        }
