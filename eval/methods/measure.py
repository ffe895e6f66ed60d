"""Running several ways of decoding side by side, and what their runs come to.

Figures are named as the field names them (docs/evaluation.md):

    speed-up       seconds a token of plain decoding over the method's: of the sums over all
                   prompts, and as the mean of the batches' own ratios, which at batch 1 are the
                   prompts'
    tau            tokens emitted per verification, bonus token included: pooled over all
                   verifications, and as the mean of the requests' own
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from dart_jax.decoding.decoder import Decoder
from dart_jax.decoding.loop import Generation
from eval.benchmarks.prompts import Prompt


@dataclasses.dataclass(frozen=True)
class Run:
    """One batch of prompts, decoded once by every method with the same seed.

    Attributes:
      group: the prompts'; None where they are of several.
      made: by method.
    """

    group: str | None
    made: Mapping[str, Generation]


@dataclasses.dataclass(frozen=True)
class Summary:
    """What one method's runs come to, beside another's.

    Attributes:
      prompts: prompts measured in each repeat.
      rates: tokens per second, of summed tokens and summed seconds, one figure a repeat.
      speedups: over the other method by those sums, one figure a repeat.
      speedup_means: means of the ratios of single runs (batches), one figure a repeat.
      tau: pooled over all verifications; nan of plain decoding's single tokens without any.
      tau_by_request: mean over the prompts' own.
      identical: prompts whose tokens are the other's in every repeat.
      lengths: how often so many drafted tokens were accepted, from 0 up.
      shares: where the time went, by stage, adding up to 1.
      step_seconds: of a verification, or a plain step, of a batch: time without prefill, over all
        repeats; nan without any.
    """

    prompts: int
    rates: list[float]
    speedups: list[float]
    speedup_means: list[float]
    tau: float
    tau_by_request: float
    identical: int
    lengths: list[int]
    shares: dict[str, float]
    step_seconds: float

    @property
    def speedup(self) -> float:
        """Median over repeats of the ratio of sums."""
        return statistics.median(self.speedups)

    @property
    def speedup_mean(self) -> float:
        """Median over repeats of the mean of ratios."""
        return statistics.median(self.speedup_means)

    @property
    def accepted(self) -> float:
        """Draft tokens accepted per verification."""
        return self.tau - 1

    @cached_property
    def acceptance(self) -> list[float]:
        """By position from 1: how often it is accepted where those before it are."""
        reached = np.cumsum(self.lengths[::-1])[::-1].tolist()
        return [after / before for before, after in pairwise(reached) if before]

    def as_json(self) -> dict[str, object]:
        """All of it."""
        return {
            **dataclasses.asdict(self),
            "speedup": self.speedup,
            "speedup_mean": self.speedup_mean,
            "accepted": self.accepted,
            "acceptance": self.acceptance,
        }


def measure(
    decoders: Mapping[str, Decoder],
    batches: Sequence[Sequence[Prompt]],
    *,
    max_new_tokens: int,
    repeats: int,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> list[list[Run]]:
    """Decodes every batch by every method, in turn, after one unmeasured pass that compiles.

    Returns:
      Per repeat, one run a batch.
    """
    results: list[list[Run]] = []
    names = list(decoders)
    for repeat in range(-1, repeats):
        runs = []
        for n, batch in enumerate(batches):
            tokens = [prompt.tokens for prompt in batch]
            # Which goes first changes from run to run, so that none always has the warm cache.
            first = (repeat + n) % len(names)
            made = {
                name: decoders[name](tokens, max_new_tokens, seed)
                for name in (*names[first:], *names[:first])
            }
            groups = {prompt.group for prompt in batch}
            group = groups.pop() if len(groups) == 1 else None
            runs.append(Run(group, {name: made[name] for name in names}))
            advance()
        if repeat >= 0:
            results.append(runs)
    return results


def summarize(repeats: Sequence[Sequence[Run]], method: str, beside: str) -> Summary:
    """Pools a method's runs over prompts, and keeps repeats apart.

    Args:
      repeats: as `measure` returns them.
      method: which.
      beside: the method that it is compared with.
    """
    first = [run.made[method] for run in repeats[0]]
    spent: Counter[str] = Counter()
    for runs in repeats:
        for run in runs:
            spent.update(run.made[method].seconds)
    total = sum(spent.values())
    steps = sum(int(made.steps.sum()) for made in first)
    # Rows of a batch take a step together, until the last one is finished.
    together = sum(int(run.made[method].steps.max()) for runs in repeats for run in runs)
    won = sum(len(tokens) - 1 for made in first for tokens in made.tokens)
    taus = np.concatenate([made.tau for made in first])
    found = Counter(
        length for made in first for drafted in made.drafted for length in accepted(drafted)
    )
    return Summary(
        prompts=sum(len(made.tokens) for made in first),
        rates=[rate(run.made[method] for run in runs) for runs in repeats],
        speedups=[
            rate(run.made[method] for run in runs) / rate(run.made[beside] for run in runs)
            for runs in repeats
        ],
        speedup_means=[
            statistics.mean(rate([run.made[method]]) / rate([run.made[beside]]) for run in runs)
            for runs in repeats
        ],
        tau=won / steps if steps else float("nan"),
        tau_by_request=float(np.nanmean(taus)) if steps else float("nan"),
        identical=sum(
            min(_identical(runs[n], method, beside) for runs in repeats) for n in range(len(first))
        ),
        lengths=[found[length] for length in range(max(found, default=0) + 1)],
        shares={stage: seconds / total for stage, seconds in spent.items()},
        step_seconds=(total - spent["prefill"]) / together if together else float("nan"),
    )


def accepted(drafted: np.ndarray) -> list[int]:
    """How many drafted tokens each verification accepted.

    Args:
      drafted: bool [n], a generation's: the first token is the prefill's, and every verification
        but a cut-off last one ends on a token of the target.
    """
    lengths, length = [], 0
    for own in (~drafted[1:]).tolist():
        if own:
            lengths.append(length)
            length = 0
        else:
            length += 1
    return [*lengths, length] if length else lengths


def rate(generations: Iterable[Generation]) -> float:
    """Tokens per second over several generations, prefill included."""
    made = list(generations)
    tokens = sum(len(row) for generation in made for row in generation.tokens)
    return tokens / sum(sum(generation.seconds.values()) for generation in made)


def _identical(run: Run, method: str, beside: str) -> int:
    """Prompts whose outputs agree token for token."""
    pairs = zip(run.made[method].tokens, run.made[beside].tokens, strict=True)
    return sum(np.array_equal(a, b) for a, b in pairs)
