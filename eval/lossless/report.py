"""The tables and the verdict of `eval.lossless`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.markup import escape
from rich.table import Table

from dart_jax.decoding.sampling import Sampling
from dart_jax.text.tokenizer import Tokenizer
from eval.lossless.distribution import SIGNIFICANT, Fit
from eval.lossless.divergence import ENDED
from eval.lossless.outcome import Outcome
from eval.methods.registry import METHODS

# Maximum number of divergences printed; all are in the JSON.
SHOWN = 20


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
    """Returns a row per sampling and batch size, over all trees and loops."""
    columns = ("tokens", "identical", "diverge", "ties", "tau")
    table = _table(title, "batch", *columns)
    table.caption = (
        "diverge: outputs that differ; ties: those where rounding decides\n"
        "tau: tokens per verification, bonus included, minimum and maximum over the trees"
    )
    rows = groupby(outcomes, key=lambda outcome: (outcome.sampling, outcome.batch_size))
    for (sampling, batch_size), members in rows:
        group = list(members)
        prompts = sum(outcome.prompts for outcome in group)
        found = [divergence for outcome in group for divergence in outcome.divergences]
        taus = sorted(outcome.tau for outcome in group)
        table.add_row(
            describe(sampling),
            str(batch_size),
            f"{sum(outcome.tokens for outcome in group):,}",
            f"{prompts - len(found)}/{prompts}",
            str(len(found)),
            str(sum(divergence.tie for divergence in found)),
            f"{taus[0]:.2f}-{taus[-1]:.2f}",
        )
    return table


def divergence_table(outcomes: Sequence[Outcome], tokenizer: Tokenizer) -> Table:
    """Returns the first differences, worst first."""
    table = _table("Divergences", "plain", "drafted", "margin", "top-2", "error", "", first="where")
    found = [(outcome, each) for outcome in outcomes for each in outcome.divergences]
    table.caption = (
        "margin: difference of the tokens' exact scores: logits, or logits / T plus noise\n"
        "top-2: difference of the target's two largest logits\n"
        "error: rounding error of a score; a margin within twice that is a tie"
    )
    if len(found) > SHOWN:
        table.caption += f"\n{len(found) - SHOWN} more are listed by --json"
    found.sort(key=lambda pair: (pair[1].tie, -pair[1].margin))
    for outcome, each in found[:SHOWN]:
        table.add_row(
            f"{METHODS[outcome.method].title}, {describe(outcome.sampling)}\n"
            f"batch {outcome.batch_size}, {outcome.nodes} nodes, {outcome.loop}\n"
            f"prompt {each.prompt}, new token {each.new_token}",
            _token(tokenizer, each.plain),
            _token(tokenizer, each.dart),
            f"{each.margin:.2g}",
            f"{each.top2:.2g}",
            f"{each.rounding:.2g}",
            each.verdict,
            end_section=True,
        )
    return table


def fit_table(fits: Mapping[Sampling, Fit]) -> Table:
    """Returns the results of the chi-square tests."""
    columns = ("texts", "draws", "drafted", "edge", "chi2", "dof", "p")
    table = _table("Sampled tokens against the target's exact probabilities", *columns)
    samples = max(fit.samples for fit in fits.values())
    table.caption = (
        f"{samples:,} samples each; texts: those with enough samples to be tested\n"
        "drafted: draws that the drafter had proposed\n"
        "edge: draws not counted, since rounding decides whether they are cut"
    )
    for sampling, fit in fits.items():
        table.add_row(
            describe(sampling),
            str(fit.positions),
            f"{fit.draws:,}",
            f"{fit.drafted / max(1, fit.draws):.0%}",
            str(fit.at_edge),
            f"{fit.chi2:.1f}",
            str(fit.dof),
            f"{fit.p:.2g}" if fit.tested else "-",
        )
    return table


def verdict(outcomes: Sequence[Outcome], fits: Mapping[Sampling, Fit]) -> tuple[bool, str]:
    """Returns whether the check passed, and a line that says so."""
    found = [divergence for outcome in outcomes for divergence in outcome.divergences]
    worse = sum(not divergence.tie for divergence in found)
    wrong = [f"{describe(how)} ({_why(fit)})" for how, fit in fits.items() if not fit.fits]
    untested = [describe(how) for how, fit in fits.items() if not fit.tested]
    tested = [fit.p for fit in fits.values() if fit.tested]
    tokens = sum(outcome.tokens for outcome in outcomes)
    parts = [f"{tokens:,} tokens in {len(outcomes)} settings"]
    parts.append(f"{worse} divergences beyond rounding, {len(found) - worse} ties within it")
    if wrong:
        parts.append(f"wrong distribution at {', '.join(wrong)}")
    elif tested:
        parts.append(f"the target's distribution (smallest p {min(tested):.2g})")
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


def _token(tokenizer: Tokenizer, token: int) -> str:
    if token == ENDED:
        return "(ended)"
    return escape(repr(tokenizer.decode([token], skip_special_tokens=False)))


def _table(title: str, *columns: str, first: str = "sampling") -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table
