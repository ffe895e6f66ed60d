"""The program `eval.lossless`: measures, prints and writes the report."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax.decoding.options import Sampling
from dart_jax.decoding.paying import Paying
from dart_jax.engine.request import SamplingMode
from dart_jax.engine.tree_size import PAUSES, State, TreeSizes
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment_in_words, write_report
from dart_jax.programs.tables import show, table
from dart_jax.progress import tracked
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.prompts import demo_prompts
from eval.lossless.config import (
    SAMPLE_TOKENS,
    SAMPLES_AT_ONCE,
    START_TOKENS,
    STARTS,
    TEXT_TOKENS,
    LosslessConfig,
)
from eval.lossless.distribution import Fit, Samples
from eval.lossless.divergence import ENDED, Case, Outcome, Prober, examine
from eval.lossless.literal_sampling import softmax
from eval.methods.decoding import Decoder, Generation
from eval.methods.registry import METHODS, PLAIN, decoder, models_of, tree

_SHOWN = 20  # divergences at most; all are in the JSON


def run(config: LosslessConfig, console: Console) -> bool:
    """Checks, prints and writes the report, anew after each setting; returns whether nothing
    differs beyond rounding."""
    check_outputs(config.json)
    lossless = Lossless(config, console)
    console.print(environment_in_words())
    for reason in lossless.left_out:
        console.print(f"left out: {reason}", markup=False)
    outcomes: list[Outcome] = []
    for outcome in lossless.compare():
        outcomes.append(outcome)
        _report(lossless, outcomes, {})
    show(console, *_tables(lossless, outcomes, {}))
    if fits := lossless.fit():
        show(console, _fits(fits))
    passed, verdict = _report(lossless, outcomes, fits)
    console.print(verdict, soft_wrap=True)
    return passed


def _tables(
    lossless: Lossless, outcomes: Sequence[Outcome], fits: Mapping[Sampling, Fit]
) -> list[Table]:
    """Returns the tables of what was checked so far."""
    by_method = {name: [x for x in outcomes if x.case.method == name] for name in lossless.methods}
    output = [_equality(name, some) for name, some in by_method.items() if some]
    if any(outcome.divergences for outcome in outcomes):
        output.append(_divergences(outcomes, lossless.tokenizer))
    if fits:
        output.append(_fits(fits))
    return output


def _report(
    lossless: Lossless, outcomes: Sequence[Outcome], fits: Mapping[Sampling, Fit]
) -> tuple[bool, str]:
    """Writes the report of what was checked so far; returns whether that passed, and a line that
    says so."""
    passed, verdict = _verdict(outcomes, fits)
    settings = [
        dataclasses.asdict(each.case) | dataclasses.asdict(each) | {"tau": each.tau}
        for each in outcomes
    ]
    tests = [
        {"sampling": dataclasses.asdict(how), **dataclasses.asdict(fit), "p": fit.p}
        for how, fit in fits.items()
    ]
    content = {"lossless": passed, "settings": settings, "distribution": tests}
    config, output = lossless.config, _tables(lossless, outcomes, fits)
    title = f"Drafted and plain texts of {config.title}"
    write_report(config, title, output, note=verdict, **content)
    return passed, verdict


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
    tokens = sum(outcome.tokens for outcome in outcomes)
    parts = [f"{tokens:,} tokens in {len(outcomes)} settings"]
    parts.append(f"{worse} divergences beyond rounding, {sum(ties)} ties within it")
    wrong = [f"{describe(how)} ({fit.fault})" for how, fit in fits.items() if fit.fault]
    tested = [fit.p for fit in fits.values() if fit.tested]
    if wrong:
        parts.append(f"wrong distribution at {', '.join(wrong)}")
    elif tested:
        parts.append(f"the target's distribution (smallest p {min(tested):.2g})")
    if untested := [describe(how) for how, fit in fits.items() if not fit.tested]:
        parts.append(f"too few samples at {', '.join(untested)}")
    passed = not worse and not wrong
    return passed, f"{'Lossless' if passed else 'NOT LOSSLESS'}: {'; '.join(parts)}."


# Of the trees: deep ones test the most.
LEVEL_DECAY = 2.5


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


class Lossless:
    """One check: its models and prompts."""

    def __init__(self, config: LosslessConfig, console: Console):
        self.config, self.console = config, console
        base = config.load()
        self.models, self.left_out = models_of(config, base)
        self.methods = [name for name in self.models if name != PLAIN]
        self.tokenizer = base.tokenizer
        functions = demo_prompts(self.tokenizer, config.prompts)
        self.prompts = [prompt.tokens[:TEXT_TOKENS] for prompt in functions]
        self.prober = Prober(base, max(*config.tree_nodes, 1))

    def decoder(self, case: Case, length: int) -> Decoder:
        """Returns a decoder with a cache of `length` rows; without a number of nodes, the sizes of
        its trees change at random."""
        model, coupled = self.models[case.method], not self.config.no_coupling
        size = tree(model, case.nodes or None, LEVEL_DECAY, chain=METHODS[case.method].chain)
        result = decoder(model, size, max_length=length, sampling=case.sampling, coupled=coupled)
        if result.tree_nodes is not None:
            return result
        seeds = itertools.count()
        policy = {"policy": lambda shapes: RandomSizes(shapes.sizes, next(seeds))}
        return dataclasses.replace(result, options={**result.options, **policy})

    def cases(self, sampling: Sampling, batch_size: int) -> list[Case]:
        """Returns the settings of all methods and trees."""
        cases = (
            Case(name, sampling, batch_size, min(nodes, METHODS[name].most))
            for name, nodes in product(self.methods, self.config.tree_nodes)
        )
        return list(dict.fromkeys(cases))

    def compare(self) -> Iterator[Outcome]:
        """Yields the outcome of every setting, in turn."""
        groups = [*product(self.config.samplings, self.config.batch_size)]
        for group in tracked(groups, "comparing", self.console):
            plain = self._decode(Case(PLAIN, *group, 0))
            for case in self.cases(*group):
                yield self._outcome(case, plain, self._decode(case))

    def _decode(self, case: Case) -> list[Generation]:
        new, size = self.config.max_new_tokens, case.batch_size
        decoder = self.decoder(case, TEXT_TOKENS + new)
        generations = [
            decoder(self.prompts[at : at + size], new, self._seed(n))
            for n, at in enumerate(range(0, len(self.prompts), size))
        ]
        jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        return generations

    def _seed(self, batch: int) -> int:
        return (self.config.seed + batch) % 2**32

    def _outcome(self, case: Case, plain: list[Generation], drafted: list[Generation]) -> Outcome:
        rows = [(n, row) for n, each in enumerate(plain) for row in range(len(each.tokens))]
        differences = (
            examine(
                *(self.prober, case.sampling, self._seed(n)),
                prompt=prompt,
                row=row,
                text=self.prompts[prompt],
                plain=plain[n].tokens[row],
                dart=drafted[n].tokens[row],
            )
            for prompt, (n, row) in enumerate(rows)
        )
        return Outcome(
            case,
            prompts=len(self.prompts),
            tokens=sum(len(tokens) for generation in plain for tokens in generation.tokens),
            steps=sum(int(generation.steps.sum()) for generation in drafted),
            divergences=[divergence for divergence in differences if divergence],
        )

    def fit(self) -> dict[Sampling, Fit]:
        """Runs the distribution test for all sampling parameters but greedy ones, after those
        prefixes of prompts that the target continues with most confidence: after others, hardly any
        text would be sampled often enough to be tested."""
        batches = range(self.config.samples // (SAMPLES_AT_ONCE * STARTS))
        if not batches:
            return {}
        starts = [prompt[:START_TOKENS] for prompt in self.prompts]
        starts.sort(key=lambda start: -softmax(self.prober(start).logits).max())
        fits = {}
        for sampling in (each for each in self.config.samplings if each.temperature):
            case = self.cases(sampling, SAMPLES_AT_ONCE)[0]
            decoder = self.decoder(case, START_TOKENS + SAMPLE_TOKENS)
            samples, works = Samples(), enumerate(product(starts[:STARTS], batches))
            title = f"sampling, {describe(sampling)}"
            for n, (start, _) in tracked([*works], title, self.console):
                rows = [start] * SAMPLES_AT_ONCE
                samples.add(start, decoder(rows, SAMPLE_TOKENS, self._seed(n)))
            fits[sampling] = samples.fit(self.prober, sampling)
        return fits


# Steps of the longest burst, and how often plain decoding begins a pause, which the drafter does
# not follow.
_STEPS, _REST = 6, 1 / 16


class RandomSizes(TreeSizes):
    """Draws the size of every burst, and the nodes that each of its steps verifies; learns
    nothing."""

    def __init__(self, sizes: Mapping[int, Sequence[int]], seed: int):
        super().__init__(sizes)
        self._rng = np.random.default_rng(seed)

    def choose(self, rows: int, mode: SamplingMode) -> State:
        """Returns any size, for some steps."""
        rng = self._rng
        size, steps = int(rng.choice(self.sizes[rows])), int(rng.integers(1, _STEPS + 1))
        if not size:
            return State(0, PAUSES[-1] if rng.random() < _REST else steps)
        paying = Paying.all(size)
        numbers = rng.integers(-1, size + 1, len(paying.numbers)).astype(np.int32)
        return State(size, steps, paying._replace(numbers=numbers))

    def drafts(self, rows: int, mode: SamplingMode) -> bool:
        """Returns True: drafts may follow at any time."""
        return True

    def learn(self, *steps: Any) -> None:
        """Learns nothing."""
