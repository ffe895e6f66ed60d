"""Runs decoding methods in turn on the same prompts, and summarises the runs.

docs/evaluation.md defines the figures.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from eval.benchmarks.prompts import Prompt
from eval.methods.decoding import Decoder, Generation

_GRAM = 8  # tokens of a piece of text that counts as a repetition if it occurred before


class Run(NamedTuple):
    """One batch of prompts, whose group is None if they belong to several, decoded once by every
    method with the same seed."""

    group: str | None
    generations: Mapping[str, Generation]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Results of one method, compared with a baseline; nan where nothing was verified.

    Attributes:
      rates: tokens per second of each repeat, prefill included, with `speedups` over the baseline.
      token_seconds: seconds per token after each prompt's first, prefill excluded, by repeat, with
        `decoding_speedups`.
      tau: tokens emitted per verification, pooled over all; its error is the standard error over
        prompts, None with fewer than two that were verified.
      repeated: share of the 8-grams of all texts that occurred before in the same text: one that
        runs in circles is easy to draft.
      identical: prompts whose tokens equal the baseline's in every repeat.
      lengths: lengths[n] is the number of verifications that accepted n drafted tokens.
      shares: stage -> its share of the time; they add up to 1.
      step_seconds: time without prefill per verification (or plain step) of a batch.
      nodes: that a verification of a prompt had, on average.
    """

    prompts: int
    rates: list[float]
    speedups: list[float]
    token_seconds: list[float]
    decoding_speedups: list[float]
    tau: float
    tau_error: float | None
    repeated: float
    identical: int
    lengths: list[int]
    shares: dict[str, float]
    step_seconds: float
    nodes: float

    @property
    def speedup(self) -> float:
        """Median of `speedups`."""
        return statistics.median(self.speedups)

    @property
    def acceptance(self) -> list[float]:
        """For each drafted position, how often it is accepted if those before it are."""
        reached = np.cumsum(self.lengths[::-1])[::-1].tolist()
        return [this / before for before, this in pairwise(reached) if before]

    def as_json(self) -> dict[str, object]:
        """Returns all fields and derived values."""
        derived = {"speedup": self.speedup, "acceptance": self.acceptance}
        return {**dataclasses.asdict(self), **derived}


def measure(
    decoders: Mapping[str, Callable[..., Generation]],
    batches: Sequence[Sequence[Prompt]],
    *,
    max_new_tokens: int,
    repeats: int,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> list[list[Run]]:
    """Decodes every batch with every method, in turn, `repeats` times after an unmeasured pass that
    compiles; returns for each repeat one run per batch. `advance` is called after each run."""
    results: list[list[Run]] = []
    names = list(decoders)
    for batch in {len(batch): batch for batch in batches}.values():
        for decoder in decoders.values():
            if isinstance(decoder, Decoder):
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
            advance()
        if repeat >= 0:
            results.append(runs)
    return results


def summarize(repeats: Sequence[Sequence[Run]], method: str, baseline: str) -> Summary:
    """Pools a method's runs, as `measure` returns them, over prompts; the rates and paces and their
    ratios to the baseline's separately for each repeat."""
    ours, theirs = (
        [[run.generations[name] for run in runs] for runs in repeats] for name in (method, baseline)
    )
    spent: Counter[str] = Counter()
    for generation in chain(*ours):
        spent.update(generation.seconds)
    if not spent["compile"]:
        del spent["compile"]  # a stage only if something was compiled in spite of the warm-up
    total = sum(spent.values())
    # All rows of a batch step together, until the last one is finished.
    batch_steps = sum(int(generation.steps.max()) for generation in chain(*ours))
    # What each prompt emitted after the prefill's token, in how many verifications.
    texts = _texts(ours[0])
    emitted = np.array([len(tokens) - 1 for tokens in texts])
    steps = np.concatenate([generation.steps for generation in ours[0]])
    repeated, grams = np.sum([repeated_grams(tokens) for tokens in texts], axis=0).tolist()
    outputs = chain(*(generation.outputs for generation in ours[0]))
    lengths = Counter(length for each in outputs for length in accepted_lengths(each.drafted))
    rates, base = ([rate(generations) for generations in each] for each in (ours, theirs))
    paces, others = ([pace(generations) for generations in each] for each in (ours, theirs))
    same = [
        [np.array_equal(a, b) for a, b in zip(_texts(one), _texts(other), strict=True)]
        for one, other in zip(ours, theirs, strict=True)
    ]
    return Summary(
        prompts=len(texts),
        rates=rates,
        speedups=[a / b for a, b in zip(rates, base, strict=True)],
        token_seconds=paces,
        decoding_speedups=[_ratio(b, a) for a, b in zip(paces, others, strict=True)],
        tau=_ratio(emitted.sum(), steps.sum()),
        tau_error=ratio_error(emitted, steps),
        repeated=repeated / grams if grams else 0.0,
        identical=int(np.all(same, axis=0).sum()),
        lengths=[lengths[n] for n in range(max(lengths, default=0) + 1)],
        shares={stage: seconds / total for stage, seconds in spent.items()},
        step_seconds=_ratio(total - spent["prefill"], batch_steps),
        nodes=_ratio(sum(generation.nodes for generation in ours[0]), steps.sum()),
    )


def _texts(generations: Iterable[Generation]) -> list[np.ndarray]:
    return [tokens for generation in generations for tokens in generation.tokens]


def _ratio(one: float, other: float) -> float:
    return float(one / other) if other else float("nan")


def ratio_error(emitted: np.ndarray, steps: np.ndarray) -> float | None:
    """Returns the standard error of the ratio of two sums over prompts, tokens and verifications,
    int [n] each, or None if it is unknown.

    It is linear in the deviations from the ratio (Cochran, Sampling Techniques, 6.4): the prompts
    are the sample, since the verifications of one prompt are not independent.
    """
    emitted, steps = emitted[steps > 0], steps[steps > 0]
    count = len(steps)
    if count < 2:
        return None
    squares = (emitted - emitted.sum() / steps.sum() * steps) ** 2
    return float((count / (count - 1) * squares.sum()) ** 0.5 / steps.sum())


def accepted_lengths(drafted: np.ndarray) -> list[int]:
    """Returns the number of drafted tokens that each verification accepted, of which tokens were
    drafted, bool [n]. The first comes from the prefill; every verification ends with a token of the
    target, except for a truncated last one."""
    ends = np.flatnonzero(~drafted)
    lengths = (np.diff(ends) - 1).tolist()
    truncated = len(drafted) - 1 - int(ends[-1])
    return [*lengths, truncated] if truncated else lengths


def rate(generations: Iterable[Generation]) -> float:
    """Returns the tokens per second over several generations, prefill included."""
    generations = list(generations)
    tokens = sum(map(len, _texts(generations)))
    return tokens / sum(sum(generation.seconds.values()) for generation in generations)


def pace(generations: Iterable[Generation]) -> float:
    """Returns the seconds per token after each prompt's first, without the prefill."""
    generations = list(generations)
    tokens = sum(len(text) - 1 for text in _texts(generations))
    spent = (generation.seconds for generation in generations)
    seconds = sum(sum(stages.values()) - stages["prefill"] for stages in spent)
    return _ratio(seconds, tokens)


def repeated_grams(tokens: np.ndarray) -> tuple[int, int]:
    """Returns how many 8-grams of a text, int [n], occurred in it before, and how many it has."""
    if len(tokens) < _GRAM:
        return 0, 0
    grams = np.lib.stride_tricks.sliding_window_view(tokens, _GRAM)
    return len(grams) - len(np.unique(grams, axis=0)), len(grams)
