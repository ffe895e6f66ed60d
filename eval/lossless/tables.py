"""The tables and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.table import Table

from dart_jax.decoding.sampling import Sampling
from dart_jax.programs.tables import table
from dart_jax.text.tokenizer import Tokenizer
from eval.lossless.distribution import SIGNIFICANT, Fit
from eval.lossless.divergence import ENDED, Outcome
from eval.methods.registry import METHODS

_SHOWN = 20  # divergences at most; all are in the JSON


def describe(sampling: Sampling) -> str:
    """Returns a label such as `T 0.7 k 50 p 0.9 min 0.1 rep 1.3`: temperature, top-k, top-p, min-p
    and repetition penalty."""
    parts = [f"T {sampling.temperature:g}"]
    if sampling.temperature:
        parts += [f"k {sampling.top_k}"] * (sampling.top_k > 0)
        parts += [f"p {sampling.top_p:g}"] * (sampling.top_p < 1)
        parts += [f"min {sampling.min_p:g}"] * (sampling.min_p > 0)
    penalty = sampling.repetition_penalty
    return " ".join(parts + [f"rep {penalty:g}"] * (penalty != 1))


def equality_table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Returns a row per sampling and batch size, over all trees."""
    rows = []
    groups = groupby(outcomes, key=lambda outcome: (outcome.case.sampling, outcome.case.batch_size))
    for (sampling, batch_size), members in groups:
        group = list(members)
        prompts = sum(outcome.prompts for outcome in group)
        divergences = [divergence for outcome in group for divergence in outcome.divergences]
        taus = [outcome.tau for outcome in group]
        rows.append(
            (
                describe(sampling),
                str(batch_size),
                f"{sum(outcome.tokens for outcome in group):,}",
                f"{prompts - len(divergences)}/{prompts}",
                str(len(divergences)),
                str(sum(divergence.tie for divergence in divergences)),
                f"{min(taus):.2f}-{max(taus):.2f}",
            )
        )
    caption = (
        "diverge: outputs that differ; ties: those where rounding decides\n"
        "tau: tokens per verification, bonus included, minimum and maximum over the trees"
    )
    columns = ("sampling", "batch", "tokens", "identical", "diverge", "ties", "tau")
    return table(title, columns, rows, caption)


def divergence_table(outcomes: Sequence[Outcome], tokenizer: Tokenizer) -> Table:
    """Returns the first differences, worst first."""
    pairs = [(outcome.case, each) for outcome in outcomes for each in outcome.divergences]
    pairs.sort(key=lambda pair: (pair[1].tie, -pair[1].margin))

    def text(token: int) -> str:
        if token == ENDED:
            return "(ended)"
        return repr(tokenizer.decode([token], skip_special_tokens=False))

    rows = [
        (
            f"{METHODS[case.method].title}, {describe(case.sampling)}\n"
            f"batch {case.batch_size}, {case.nodes} nodes\n"
            f"prompt {each.prompt}, new token {each.new_token}",
            *map(text, (each.plain, each.dart)),
            *(f"{number:.2g}" for number in (each.margin, each.top2, each.rounding)),
            each.verdict,
        )
        for case, each in pairs[:_SHOWN]
    ]
    caption = (
        "margin: difference of the tokens' exact scores: logits, or logits / T plus noise\n"
        "top-2: difference of the target's two largest logits\n"
        "error: rounding error of a score; a margin within twice that is a tie"
    )
    if len(pairs) > _SHOWN:
        caption += f"\n{len(pairs) - _SHOWN} more are listed by --json"
    columns = ("where", "plain", "drafted", "margin", "top-2", "error", "")
    return table("Divergences", columns, rows, caption)


def fit_table(fits: Mapping[Sampling, Fit]) -> Table:
    """Returns the results of the chi-square tests."""
    rows = [
        (
            describe(sampling),
            str(fit.positions),
            f"{fit.draws:,}",
            f"{fit.drafted / max(1, fit.draws):.0%}",
            str(fit.at_edge),
            f"{fit.chi2:.1f}",
            str(fit.dof),
            f"{fit.p:.2g}" if fit.tested else "-",
        )
        for sampling, fit in fits.items()
    ]
    samples = max(fit.samples for fit in fits.values())
    caption = (
        f"{samples:,} samples each; texts: those with enough samples to be tested\n"
        "drafted: draws that the drafter had proposed\n"
        "edge: draws not counted, since rounding decides whether they are cut"
    )
    columns = ("sampling", "texts", "draws", "drafted", "edge", "chi2", "dof", "p")
    title = "Sampled tokens against the target's exact probabilities"
    return table(title, columns, rows, caption)


def verdict(outcomes: Sequence[Outcome], fits: Mapping[Sampling, Fit]) -> tuple[bool, str]:
    """Returns whether the check passed, and a line that says so."""
    ties = [divergence.tie for outcome in outcomes for divergence in outcome.divergences]
    worse = len(ties) - sum(ties)
    wrong = [f"{describe(how)} ({_why(fit)})" for how, fit in fits.items() if not fit.fits]
    untested = [describe(how) for how, fit in fits.items() if not fit.tested]
    p_values = [fit.p for fit in fits.values() if fit.tested]
    tokens = sum(outcome.tokens for outcome in outcomes)
    parts = [f"{tokens:,} tokens in {len(outcomes)} settings"]
    parts.append(f"{worse} divergences beyond rounding, {sum(ties)} ties within it")
    if wrong:
        parts.append(f"wrong distribution at {', '.join(wrong)}")
    elif p_values:
        parts.append(f"the target's distribution (smallest p {min(p_values):.2g})")
    if untested:
        parts.append(f"too few samples at {', '.join(untested)}")
    passed = not worse and not wrong
    return passed, f"{'Lossless' if passed else 'NOT LOSSLESS'}: {'; '.join(parts)}."


def _why(fit: Fit) -> str:
    if fit.forbidden:
        return f"{fit.forbidden} tokens that the filters cut"
    if fit.implausible:
        return f"logits differ between implementations by {fit.rounding:.2g}"
    return f"p {fit.p:.1g} < {SIGNIFICANT:g}"
