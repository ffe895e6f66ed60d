"""Runs decoding methods in turn on the same prompts, and summarises the runs.

Metrics (docs/evaluation.md):

    speed-up       seconds per token of plain decoding over the method's: once from the sums over
                   all prompts, once as the mean of the ratios per batch (per prompt at batch 1)
    tau            tokens emitted per verification, bonus token included: once pooled over all
                   verifications, once as the mean over requests
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress, pairwise

import numpy as np

from dart_jax.decoding.decoder import Decoder
from dart_jax.decoding.loop import Generation
from eval.benchmarks.prompts import Prompt
from eval.methods.repetition import is_varied, repeated_grams


@dataclasses.dataclass(frozen=True)
class Run:
    """One batch of prompts, decoded once by every method with the same seed.

    Attributes:
      group: group of the prompts; None if they belong to several.
      generations: method -> its generation.
    """

    group: str | None
    generations: Mapping[str, Generation]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Results of one method, compared with a baseline.

    Attributes:
      prompts: prompts measured in each repeat.
      rates: tokens per second, from summed tokens and summed seconds; one value per repeat.
      speedups: ratios of these rates to the baseline's; one value per repeat.
      speedup_means: means of the ratios per run (batch); one value per repeat.
      tau: pooled over all verifications; nan if there are none.
      tau_error: standard error of `tau` over prompts; None with fewer than two that were verified.
      tau_by_request: mean of tau per prompt.
      repeated: share of the 8-grams of all texts that occurred before in the same text.
      varied: prompts whose texts hardly repeat themselves (see `repetition.is_varied`).
      tau_varied: pooled over the verifications of these; nan if there are none.
      identical: prompts whose tokens equal the baseline's in every repeat.
      lengths: lengths[n] is the number of verifications that accepted n drafted tokens.
      shares: stage -> its share of the time; they add up to 1.
      step_seconds: time without prefill per verification (or plain step) of a batch, over all
        repeats; nan if there are none.
    """

    prompts: int
    rates: list[float]
    speedups: list[float]
    speedup_means: list[float]
    tau: float
    tau_error: float | None
    tau_by_request: float
    repeated: float
    varied: int
    tau_varied: float
    identical: int
    lengths: list[int]
    shares: dict[str, float]
    step_seconds: float

    @property
    def speedup(self) -> float:
        """Median of `speedups`."""
        return statistics.median(self.speedups)

    @property
    def speedup_mean(self) -> float:
        """Median of `speedup_means`."""
        return statistics.median(self.speedup_means)

    @property
    def accepted(self) -> float:
        """Draft tokens accepted per verification."""
        return self.tau - 1

    @cached_property
    def acceptance(self) -> list[float]:
        """For each drafted position, how often it is accepted if those before it are."""
        reached = np.cumsum(self.lengths[::-1])[::-1].tolist()
        return [this / before for before, this in pairwise(reached) if before]

    def as_json(self) -> dict[str, object]:
        """Returns all fields and derived values."""
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
    advance: Callable[[Run], None] = lambda run: None,
) -> list[list[Run]]:
    """Decodes every batch with every method, in turn, after one unmeasured pass that compiles.

    Args:
      decoders: method -> its decoder.
      batches: prompts that are decoded together.
      max_new_tokens: tokens for each prompt.
      repeats: measured passes.
      seed: of sampling.
      advance: called after each run, those of the unmeasured pass included.

    Returns:
      For each repeat, one run per batch.
    """
    results: list[list[Run]] = []
    names = list(decoders)
    for batch in {len(batch): batch for batch in batches}.values():
        for decoder in decoders.values():
            decoder.prepare([prompt.tokens for prompt in batch], max_new_tokens, seed)
    for repeat in range(-1, repeats):
        runs = []
        for n, batch in enumerate(batches):
            tokens = [prompt.tokens for prompt in batch]
            # Rotate which method goes first, so that none always has the warm cache.
            first = (repeat + n) % len(names)
            generations = {
                name: decoders[name](tokens, max_new_tokens, seed)
                for name in (*names[first:], *names[:first])
            }
            groups = {prompt.group for prompt in batch}
            group = groups.pop() if len(groups) == 1 else None
            runs.append(Run(group, {name: generations[name] for name in names}))
            advance(runs[-1])
        if repeat >= 0:
            results.append(runs)
    return results


def summarize(repeats: Sequence[Sequence[Run]], method: str, baseline: str) -> Summary:
    """Pools a method's runs over prompts, separately for each repeat.

    Args:
      repeats: as returned by `measure`.
      method: the method to summarise.
      baseline: the method that it is compared with.
    """
    first = [run.generations[method] for run in repeats[0]]
    spent: Counter[str] = Counter()
    for runs in repeats:
        for run in runs:
            spent.update(run.generations[method].seconds)
    if not spent["compile"]:
        del spent["compile"]  # a stage only if something was compiled in spite of the warm-up
    total = sum(spent.values())
    # What each prompt emitted after the prefill's token, in how many verifications.
    texts = [tokens for generation in first for tokens in generation.tokens]
    emitted = [len(tokens) - 1 for tokens in texts]
    steps = [int(number) for generation in first for number in generation.steps]
    varied = [is_varied(tokens) for tokens in texts]
    repeated, grams = np.sum([repeated_grams(tokens) for tokens in texts], axis=0).tolist()
    # All rows of a batch step together, until the last one is finished.
    batch_steps = sum(int(run.generations[method].steps.max()) for runs in repeats for run in runs)
    taus = np.concatenate([generation.tau for generation in first])
    lengths = Counter(
        length
        for generation in first
        for drafted in generation.drafted
        for length in accepted_lengths(drafted)
    )
    return Summary(
        prompts=len(texts),
        rates=[rate(run.generations[method] for run in runs) for runs in repeats],
        speedups=[
            rate(run.generations[method] for run in runs)
            / rate(run.generations[baseline] for run in runs)
            for runs in repeats
        ],
        speedup_means=[
            statistics.mean(
                rate([run.generations[method]]) / rate([run.generations[baseline]]) for run in runs
            )
            for runs in repeats
        ],
        tau=_pooled(emitted, steps),
        tau_error=ratio_error(emitted, steps),
        tau_by_request=float(np.nanmean(taus)) if sum(steps) else float("nan"),
        repeated=repeated / grams if grams else 0.0,
        varied=sum(varied),
        tau_varied=_pooled(compress(emitted, varied), compress(steps, varied)),
        identical=sum(
            min(_identical(runs[n], method, baseline) for runs in repeats)
            for n in range(len(first))
        ),
        lengths=[lengths[n] for n in range(max(lengths, default=0) + 1)],
        shares={stage: seconds / total for stage, seconds in spent.items()},
        step_seconds=(total - spent["prefill"]) / batch_steps if batch_steps else float("nan"),
    )


def _pooled(emitted: Iterable[int], steps: Iterable[int]) -> float:
    """Tau over prompts; nan without verifications."""
    number = sum(steps)
    return sum(emitted) / number if number else float("nan")


def ratio_error(emitted: Sequence[int], steps: Sequence[int]) -> float | None:
    """Returns the standard error of the ratio of two sums over prompts; None if it is unknown.

    It is linear in the deviations from the ratio (Cochran, Sampling Techniques, 6.4): the prompts
    are the sample, since the verifications of one prompt are not independent.

    Args:
      emitted: tokens emitted for each prompt.
      steps: verifications of each prompt; prompts without any do not count.
    """
    used = [(tokens, number) for tokens, number in zip(emitted, steps, strict=True) if number]
    if len(used) < 2:
        return None
    total = sum(number for _, number in used)
    ratio = sum(tokens for tokens, _ in used) / total
    squares = sum((tokens - ratio * number) ** 2 for tokens, number in used)
    return (len(used) / (len(used) - 1) * squares) ** 0.5 / total


def accepted_lengths(drafted: np.ndarray) -> list[int]:
    """Returns the number of drafted tokens that each verification accepted.

    Args:
      drafted: bool [n], which tokens of a generation were drafted. The first token comes from the
        prefill; every verification ends with a token of the target, except for a truncated last
        one.
    """
    lengths, length = [], 0
    for from_target in (~drafted[1:]).tolist():
        if from_target:
            lengths.append(length)
            length = 0
        else:
            length += 1
    return [*lengths, length] if length else lengths


def rate(generations: Iterable[Generation]) -> float:
    """Returns the tokens per second over several generations, prefill included."""
    generations = list(generations)
    tokens = sum(len(row) for generation in generations for row in generation.tokens)
    return tokens / sum(sum(generation.seconds.values()) for generation in generations)


def _identical(run: Run, method: str, baseline: str) -> int:
    """Returns the number of prompts whose outputs are the same, token for token."""
    pairs = zip(run.generations[method].tokens, run.generations[baseline].tokens, strict=True)
    return sum(np.array_equal(a, b) for a, b in pairs)


def first_difference(one: np.ndarray, other: np.ndarray) -> int | None:
    """Returns the index of the first new token at which two rows differ; None if they are equal."""
    shorter = min(len(one), len(other))
    different = np.flatnonzero(one[:shorter] != other[:shorter])
    if len(different):
        return int(different[0])
    return None if len(one) == len(other) else shorter
