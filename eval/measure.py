"""Running two ways of decoding side by side."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from dart_jax.loop import Generation
from dart_jax.model import Decoder
from eval.prompts import Prompt


@dataclasses.dataclass(frozen=True)
class Run:
    """One batch of prompts, decoded once in each way with the same seed."""

    group: str
    prompts: int
    plain: Generation
    dart: Generation

    @property
    def identical(self) -> int:
        """Prompts whose outputs agree token for token."""
        pairs = zip(self.plain.tokens, self.dart.tokens, strict=True)
        return sum(np.array_equal(a, b) for a, b in pairs)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a set of runs adds up to. Rates are of summed tokens and summed seconds.

    Attributes:
      prompts: prompts measured in each repeat.
      plain: tokens per second of plain decoding, one figure a repeat.
      dart: the same with DART.
      tau: tokens emitted per verification, bonus included, pooled.
      identical: prompts with identical outputs in every repeat.
      shares: where DART's time went, by stage, adding up to 1.
    """

    prompts: int
    plain: list[float]
    dart: list[float]
    tau: float
    identical: int
    shares: dict[str, float]

    @property
    def speedup(self) -> float:
        """Median over repeats of the ratio of rates."""
        return statistics.median(d / p for d, p in zip(self.dart, self.plain, strict=True))

    @property
    def accepted(self) -> float:
        """Draft tokens accepted per verification."""
        return self.tau - 1


def measure(
    plain: Decoder,
    dart: Decoder,
    batches: Sequence[Sequence[Prompt]],
    *,
    max_new_tokens: int,
    repeats: int,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> list[list[Run]]:
    """Decodes every batch in both ways, in turn, after one unmeasured pass that compiles.

    Returns:
      Per repeat, one run a batch.
    """
    results: list[list[Run]] = []
    for repeat in range(-1, repeats):
        runs = []
        for n, batch in enumerate(batches):
            tokens = [prompt.tokens for prompt in batch]
            # Which goes first changes from run to run, so that neither always has the warm cache.
            order = (plain, dart) if (repeat + n) % 2 else (dart, plain)
            made = {decoder: decoder(tokens, max_new_tokens, seed) for decoder in order}
            runs.append(Run(batch[0].group, len(batch), made[plain], made[dart]))
            advance()
        if repeat >= 0:
            results.append(runs)
    return results


def summarize(repeats: list[list[Run]]) -> Summary:
    """Pools runs over prompts, and keeps repeats apart."""
    first = repeats[0]
    everything = [run for runs in repeats for run in runs]
    seconds: dict[str, float] = {}
    for run in everything:
        for stage, spent in run.dart.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
    total = sum(seconds.values())
    drafted = sum(len(tokens) - 1 for run in first for tokens in run.dart.tokens)
    return Summary(
        prompts=sum(run.prompts for run in first),
        plain=[rate(run.plain for run in runs) for runs in repeats],
        dart=[rate(run.dart for run in runs) for runs in repeats],
        tau=drafted / max(1, sum(int(run.dart.steps.sum()) for run in first)),
        identical=sum(min(runs[n].identical for runs in repeats) for n in range(len(first))),
        shares={stage: spent / total for stage, spent in seconds.items()},
    )


def rate(generations) -> float:
    """Tokens per second over several generations, prefill included."""
    made = list(generations)
    tokens = sum(len(row) for generation in made for row in generation.tokens)
    return tokens / sum(sum(generation.seconds.values()) for generation in made)
