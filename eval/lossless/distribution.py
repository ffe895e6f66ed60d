"""A chi-square test of whether sampled tokens follow the target's distribution.

Comparing with plain decoding does not reveal an error that both share, such as a wrong temperature
or wrong noise. Here the expected counts come from one forward over the whole text and a literal
float64 sampler (`eval.lossless.literal_sampling`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict

import numpy as np
from jax.scipy.stats import chi2 as chi2_distribution

from dart_jax.decoding.options import Sampling
from eval.lossless.divergence import Prober
from eval.lossless.literal_sampling import edge, scale, scale_rounding, softmax
from eval.methods.decoding import Generation

ENOUGH = 100  # samples of a position that is tested
LEAST_EXPECTED = 5.0  # tokens with a smaller expected count are pooled
SIGNIFICANT = 1e-4  # the test fails if p is smaller


@dataclasses.dataclass(frozen=True)
class Fit:
    """Result of one test.

    Attributes:
      positions: texts whose continuations are tested together.
      draws: tokens sampled at the tested positions.
      drafted: of these, how many the drafter had proposed.
      at_edge: not counted, as rounding decides whether top-k, top-p or min-p cuts them.
      forbidden: how many the filters cut whatever the rounding.
      chi2: sum of squared deviations over their variances, with `dof` degrees of freedom.
      rounding: the largest rounding error of all positions.
      implausible: texts whose logits differ by more than the dtype explains.
    """

    samples: int
    positions: int = 0
    draws: int = 0
    drafted: int = 0
    at_edge: int = 0
    forbidden: int = 0
    chi2: float = 0.0
    dof: int = 0
    rounding: float = 0.0
    implausible: int = 0

    @property
    def p(self) -> float:
        """The probability of a `chi2` at least as large."""
        return float(chi2_distribution.sf(self.chi2, self.dof)) if self.tested else 1.0

    @property
    def tested(self) -> bool:
        """Whether any position had enough samples."""
        return self.dof > 0

    @property
    def fault(self) -> str:
        """Why the samples contradict the target's distribution; empty if they do not."""
        if self.forbidden:
            return f"{self.forbidden} tokens that the filters cut"
        if self.implausible:
            return f"logits differ between implementations by {self.rounding:.2g}"
        return f"p {self.p:.1g} < {SIGNIFICANT:g}" if self.p < SIGNIFICANT else ""


class Samples:
    """Sampled sequences: text -> counts of the next tokens."""

    def __init__(self) -> None:
        self.count = 0
        self._next: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        self._drafted: Counter[tuple[int, ...]] = Counter()

    def add(self, prompt: np.ndarray, generation: Generation) -> None:
        """Adds a batch sampled from one prompt. The first new token (prefill) is not tested."""
        start = tuple(map(int, prompt))
        for tokens, drafted in ((each.tokens, each.drafted) for each in generation.outputs):
            self.count += 1
            row = tokens.tolist()
            for i in range(1, len(row)):
                text = (*start, *row[:i])
                self._next[text][row[i]] += 1
                self._drafted[text] += int(drafted[i])

    def fit(self, prober: Prober, sampling: Sampling) -> Fit:
        """Tests all texts that have enough samples."""
        total = Fit(self.count)
        for text, counts in self._next.items():
            if counts.total() < ENOUGH:
                continue
            probe, before = prober(np.array(text)), np.array(text)
            eps = scale_rounding(probe.rounding, sampling)
            scaled = scale(probe.logits, sampling, before)
            always, maybe = edge(scaled, sampling, eps)
            draws = np.bincount(list(counts.elements()), minlength=len(scaled))
            chi2, dof = chi_square(draws[always], softmax(scaled[always]), eps)
            total = dataclasses.replace(
                total,
                positions=total.positions + 1,
                draws=total.draws + counts.total(),
                drafted=total.drafted + self._drafted[text],
                at_edge=total.at_edge + int(draws[maybe & ~always].sum()),
                forbidden=total.forbidden + int(draws[~maybe].sum()),
                chi2=total.chi2 + chi2,
                dof=total.dof + dof,
                rounding=max(total.rounding, eps),
                implausible=total.implausible + (not probe.plausible),
            )
        return total


def chi_square(draws: np.ndarray, probability: np.ndarray, eps: float = 0.0) -> tuple[float, int]:
    """Returns Pearson's statistic of draws, int [V], against probabilities, float64 [V], and its
    degrees of freedom. `eps` is the relative error of the probabilities, a standard deviation that
    is added to the variance of the counts, so that rounding in bfloat16 looks like no other
    distribution."""
    if not draws.sum():
        return 0.0, 0
    expected = draws.sum() * probability
    often = expected >= LEAST_EXPECTED
    every = np.stack([expected, draws])
    cells, rest = every[:, often], every[:, ~often].sum(axis=1)
    if rest[0] >= LEAST_EXPECTED or not cells.size:
        cells = np.column_stack([cells, rest])
    else:
        cells[:, cells[0].argmin()] += rest
    mean, count = cells
    if len(mean) < 2:
        return 0.0, 0
    return float(((count - mean) ** 2 / (mean + (mean * eps) ** 2)).sum()), len(mean) - 1
