"""The program `eval.lossless`: measures, prints and writes the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from dart_jax.decoding.sampling import Sampling
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment, write_report
from dart_jax.programs.tables import table
from dart_jax.text.tokenizer import Tokenizer
from eval.lossless.check import Lossless, describe
from eval.lossless.config import LosslessConfig
from eval.lossless.distribution import SIGNIFICANT, Fit
from eval.lossless.divergence import ENDED, Outcome
from eval.methods.registry import METHODS

_SHOWN = 20  # divergences at most; all are in the JSON


def run(config: LosslessConfig, console: Console) -> bool:
    """Checks, prints and writes the report; returns whether nothing differs beyond rounding."""
    check_outputs(config.json)
    lossless = Lossless(config, console)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    for reason in lossless.left_out:
        console.print(f"left out: {reason}")
    outcomes = list(lossless.compare())
    output: list[Table] = []
    for name in lossless.methods:
        output.append(_equality(name, [each for each in outcomes if each.case.method == name]))
    if any(outcome.divergences for outcome in outcomes):
        output.append(_divergences(outcomes, lossless.tokenizer))
    console.print(*output)
    fits = lossless.fit()
    if fits:
        output.append(_fits(fits))
        console.print(output[-1])
    passed, verdict = _verdict(outcomes, fits)
    settings = [
        {
            **dataclasses.asdict(each.case),
            **dataclasses.asdict(each),
            "tau": each.tau,
            "divergences": [
                dataclasses.asdict(x) | {"verdict": x.verdict} for x in each.divergences
            ],
        }
        for each in outcomes
    ]
    tests = [
        {"sampling": dataclasses.asdict(how), **dataclasses.asdict(fit), "p": fit.p}
        for how, fit in fits.items()
    ]
    content = {"lossless": passed, "settings": settings, "distribution": tests}
    title = f"Drafted and plain texts of {config.title}"
    write_report(config, title, output, note=verdict, **content)
    console.print(verdict, soft_wrap=True)
    return passed


def _equality(method: str, outcomes: Sequence[Outcome]) -> Table:
    """Returns a row per sampling and batch size, over all trees."""
    rows = []
    for (how, batch), members in groupby(outcomes, lambda x: (x.case.sampling, x.case.batch_size)):
        group = list(members)
        prompts, taus = sum(each.prompts for each in group), [each.tau for each in group]
        ties = [divergence.tie for each in group for divergence in each.divergences]
        counts = f"{prompts - len(ties)}/{prompts}", str(len(ties)), str(sum(ties))
        tokens = f"{sum(each.tokens for each in group):,}"
        rows.append(
            (describe(how), str(batch), tokens, *counts, f"{min(taus):.2f}-{max(taus):.2f}")
        )
    caption = (
        "diverge: outputs that differ; ties: those where rounding decides\n"
        "tau: tokens per verification, bonus included, minimum and maximum over the trees"
    )
    sizes = ", ".join(dict.fromkeys(str(each.case.nodes) for each in outcomes))
    title = f"{METHODS[method].title} against plain decoding: trees of {sizes} nodes"
    columns = ("sampling", "batch", "tokens", "identical", "diverge", "ties", "tau")
    return table(title, columns, rows, caption)


def _divergences(outcomes: Sequence[Outcome], tokenizer: Tokenizer) -> Table:
    """Returns the first differences, worst first."""
    pairs = [(outcome.case, each) for outcome in outcomes for each in outcome.divergences]
    pairs.sort(key=lambda pair: (pair[1].tie, -pair[1].margin))

    def text(token: int) -> str:
        ended = token == ENDED
        return "(ended)" if ended else repr(tokenizer.decode([token], skip_special_tokens=False))

    rows = [
        (
            f"{METHODS[case.method].title}, {describe(case.sampling)}\n"
            f"batch {case.batch_size}, {case.nodes} nodes\n"
            f"prompt {each.prompt}, new token {each.new_token}",
            *map(text, (each.plain, each.dart)),
            *(f"{number:.2g}" for number in (each.margin, each.rounding)),
            each.verdict,
        )
        for case, each in pairs[:_SHOWN]
    ]
    caption = (
        "margin: difference of the tokens' exact scores: logits, or logits / T plus noise\n"
        "error: rounding error of a score; a margin within twice that is a tie"
    )
    if len(pairs) > _SHOWN:
        caption += f"\n{len(pairs) - _SHOWN} more are listed by --json"
    columns = ("where", "plain", "drafted", "margin", "error", "")
    return table("Divergences", columns, rows, caption)


def _fits(fits: Mapping[Sampling, Fit]) -> Table:
    """Returns the results of the chi-square tests."""
    rows = [
        (
            *(describe(how), str(fit.positions), f"{fit.draws:,}"),
            *(f"{fit.drafted / max(1, fit.draws):.0%}", str(fit.at_edge)),
            *(f"{fit.chi2:.1f}", str(fit.dof), f"{fit.p:.2g}" if fit.tested else "-"),
        )
        for how, fit in fits.items()
    ]
    caption = (
        f"{max(fit.samples for fit in fits.values()):,} samples each; texts: those with enough "
        "samples to be tested\ndrafted: draws that the drafter had proposed\n"
        "edge: draws not counted, since rounding decides whether they are cut"
    )
    columns = ("sampling", "texts", "draws", "drafted", "edge", "chi2", "dof", "p")
    title = "Sampled tokens against the target's exact probabilities"
    return table(title, columns, rows, caption)


def _verdict(outcomes: Sequence[Outcome], fits: Mapping[Sampling, Fit]) -> tuple[bool, str]:
    """Returns whether the check passed, and a line that says so."""
    ties = [divergence.tie for outcome in outcomes for divergence in outcome.divergences]
    worse = len(ties) - sum(ties)
    wrong = [f"{describe(how)} ({_why(fit)})" for how, fit in fits.items() if not fit.fits]
    untested = [describe(how) for how, fit in fits.items() if not fit.tested]
    tested = [fit.p for fit in fits.values() if fit.tested]
    tokens = sum(outcome.tokens for outcome in outcomes)
    parts = [f"{tokens:,} tokens in {len(outcomes)} settings"]
    parts.append(f"{worse} divergences beyond rounding, {sum(ties)} ties within it")
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
