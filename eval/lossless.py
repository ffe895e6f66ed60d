"""Whether the output of drafting is the target's own: token for token, and in distribution.

    python -m eval.lossless
    python -m eval.lossless --method all

Decodes the same prompts plainly and with drafts, with the same seeds, in every combination of
temperature, filters, batch size, tree size and loop asked for. Every first difference is looked
into: a tie within rounding, or two different distributions. Then many short samples are compared
with the target's exact probabilities. Exit status 1 if anything but rounding differs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console

from dart_jax.errors import UserError, one_line_errors
from dart_jax.loop import Generation
from dart_jax.model import Decoder, Loop
from dart_jax.sampling import Sampling
from eval import lossless_report as report
from eval.distribution import Fit, Samples
from eval.divergence import Divergence, examine
from eval.literal import softmax
from eval.methods import METHODS, PLAIN, MethodChoice, decoder
from eval.prompts import demo_prompts
from eval.report import progress_bar
from eval.rounding import Prober
from eval.tree_size import LEVEL_DECAYS, SIZES, Tree
from train.corpus import HELD_OUT
from train.outputs import check_outputs, environment, write_json

# Prompts are functions of up to so many tokens, of which the first are taken: all of one length, or
# nearly, so that there are few programs to compile.
FUNCTION_TOKENS = 128
PROMPT_TOKENS = 32

# The distribution test: sequences drawn together, tokens of a prompt, tokens drawn, prompts.
SAMPLES_AT_ONCE = 64
START_TOKENS = 16
SAMPLE_TOKENS = 5
STARTS = 2


@dataclasses.dataclass(frozen=True)
class LosslessConfig(MethodChoice):
    """What to check, and how thoroughly."""

    prompts: int = 2
    """Prompts of each of the four groups."""
    max_new_tokens: int = 32
    """Tokens to generate for each prompt."""
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    """0 takes the most likely token; others are checked without and with the filters below."""
    top_k: int = 50
    """Draw from the k most likely tokens; 0 for all."""
    top_p: float = 0.9
    """Draw from the smallest set of tokens with this much probability."""
    min_p: float = 0.0
    """Leave out tokens less likely than this fraction of the most likely one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that the text holds become less likely; at every temperature."""
    batch_sizes: tuple[int, ...] = (1, 8)
    """Prompts decoded together."""
    tree_nodes: tuple[int, ...] = (8, 60)
    """Nodes of the draft trees; no more than eval.speedup would give the method."""
    grid: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """All tree sizes that eval.speedup chooses from, instead of --tree-nodes."""
    loops: tuple[Loop, ...] = ("fused", "host")
    """fused: the generation is one program; host: step and search in turn."""
    samples: int = 1024
    """Sequences drawn for each distribution test, of the first method; 0 leaves the tests out."""
    seed: int = 0
    """Of the target's draws."""
    json: Path | None = None
    """Write everything found to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperatures", "batch_sizes", "tree_nodes", "loops"):
            if not getattr(self, name):
                raise UserError(f"--{name.replace('_', '-')} needs at least one value")
        for name in ("prompts", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        for name in ("batch_sizes", "tree_nodes"):
            if min(getattr(self, name)) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if max(self.batch_sizes) > self.prompts * len(HELD_OUT):
            raise UserError(
                f"a batch of {max(self.batch_sizes)} needs more than the {self.prompts} prompts of "
                f"each of {len(HELD_OUT)} groups; raise --prompts"
            )
        if 0 < self.samples < SAMPLES_AT_ONCE * STARTS:
            raise UserError(f"--samples must be 0 or at least {SAMPLES_AT_ONCE * STARTS}")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}")
        _ = self.samplings  # checks the values

    @property
    def samplings(self) -> tuple[Sampling, ...]:
        """How the target draws, in turn: every temperature without and with filters."""
        penalty = self.repetition_penalty
        made = []
        for temperature in self.temperatures:
            made.append(Sampling(temperature, repetition_penalty=penalty))
            if temperature:
                made.append(Sampling(temperature, self.top_k, self.top_p, self.min_p, penalty))
        return tuple(dict.fromkeys(made))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One setting against plain decoding.

    Attributes:
      method: the way of drafting.
      sampling: how the target draws.
      batch_size: prompts decoded together.
      nodes: of the draft trees.
      loop: see `LosslessConfig`.
      prompts: prompts decoded.
      tokens: tokens that plain decoding gave for them.
      steps: verifications.
      divergences: the first difference of every prompt whose outputs are not the same.
    """

    method: str
    sampling: Sampling
    batch_size: int
    nodes: int
    loop: Loop
    prompts: int
    tokens: int
    steps: int
    divergences: list[Divergence]

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus token included."""
        return (self.tokens - self.prompts) / max(1, self.steps)


class Lossless:
    """One check: model, prompts and progress bar."""

    def __init__(self, config: LosslessConfig, console: Console):
        self.config = config
        base = config.load()
        self.models, self.left_out = config.models(base)
        self.tokenizer = base.tokenizer
        functions = demo_prompts(self.tokenizer, config.prompts, FUNCTION_TOKENS)
        self.prompts = [prompt.tokens[:PROMPT_TOKENS] for prompt in functions]
        self.sizes = SIZES if config.grid else config.tree_nodes
        self.prober = Prober(base, max(self.sizes))
        self.progress = progress_bar(console)

    @property
    def methods(self) -> list[str]:
        """Ways of drafting."""
        return [name for name in self.models if name != PLAIN]

    def decoder(
        self, name: str, sampling: Sampling, nodes: int, loop: Loop, length: int
    ) -> Decoder:
        """One way to decode. Deep trees put most to the test."""
        tree = Tree(nodes, max(LEVEL_DECAYS))
        return decoder(self.models[name], tree, max_length=length, sampling=sampling, loop=loop)

    def trees(self) -> list[tuple[str, int, Loop]]:
        """Methods, nodes and loops."""
        every = product(self.methods, self.sizes, self.config.loops)
        fitting: list[tuple[str, int, Loop]] = [
            (name, min(nodes, max(METHODS[name].sizes)), loop) for name, nodes, loop in every
        ]
        return list(dict.fromkeys(fitting))

    def compare(self) -> Iterator[Outcome]:
        """Every setting in turn."""
        config = self.config
        trees = self.trees()
        groups = list(product(config.samplings, config.batch_sizes))
        with self.progress as progress:
            task = progress.add_task("", total=len(groups) * (len(trees) + 1))
            for sampling, size in groups:
                name = f"{report.describe(sampling)}, batch {size}"
                progress.update(task, description=f"{name}, plain")
                plain = self._decode(PLAIN, sampling, size, 0, "fused")
                progress.advance(task)
                for method, nodes, loop in trees:
                    how = f"{name}, {METHODS[method].title}, {nodes} nodes, {loop} loop"
                    progress.update(task, description=how)
                    made = self._decode(method, sampling, size, nodes, loop)
                    yield self._outcome(method, sampling, size, nodes, loop, plain, made)
                    progress.advance(task)
            progress.remove_task(task)

    def _decode(
        self, method: str, sampling: Sampling, size: int, nodes: int, loop: Loop
    ) -> list[Generation]:
        new = self.config.max_new_tokens
        decoder = self.decoder(method, sampling, nodes, loop, PROMPT_TOKENS + new)
        return [decoder(batch, new, self._seed(n)) for n, batch in enumerate(self._batches(size))]

    def _batches(self, size: int) -> list[list[np.ndarray]]:
        return [self.prompts[i : i + size] for i in range(0, len(self.prompts), size)]

    def _seed(self, n: int) -> int:
        """Every batch has its own."""
        return (self.config.seed + n) % 2**32

    def _outcome(
        self,
        method: str,
        sampling: Sampling,
        size: int,
        nodes: int,
        loop: Loop,
        plain: list[Generation],
        drafted: list[Generation],
    ) -> Outcome:
        found = [
            examine(
                self.prober,
                sampling,
                self._seed(n),
                prompt=n * size + row,
                row=row,
                text=prompt,
                plain=plain[n].tokens[row],
                dart=drafted[n].tokens[row],
            )
            for n, batch in enumerate(self._batches(size))
            for row, prompt in enumerate(batch)
        ]
        return Outcome(
            method=method,
            sampling=sampling,
            batch_size=size,
            nodes=nodes,
            loop=loop,
            prompts=len(found),
            tokens=sum(len(tokens) for made in plain for tokens in made.tokens),
            steps=sum(int(made.steps.sum()) for made in drafted),
            divergences=[divergence for divergence in found if divergence],
        )

    def _starts(self) -> list[np.ndarray]:
        """Beginnings of prompts that the target is surest how to continue.

        Otherwise hardly a text would be seen often enough to be tested.
        """
        starts = [prompt[:START_TOKENS] for prompt in self.prompts]
        starts.sort(key=lambda start: -softmax(self.prober(start).logits).max())
        return starts[:STARTS]

    def fit(self) -> dict[Sampling, Fit]:
        """The distribution test of every sampling that draws."""
        config = self.config
        samplings = [sampling for sampling in config.samplings if sampling.temperature]
        starts = self._starts()
        batches = config.samples // (SAMPLES_AT_ONCE * STARTS)
        fits = {}
        if not batches:
            return fits
        with self.progress as progress:
            task = progress.add_task("", total=len(samplings) * STARTS * batches)
            for sampling in samplings:
                name = f"{report.describe(sampling)}, distribution"
                progress.update(task, description=name)
                length = START_TOKENS + SAMPLE_TOKENS
                method, nodes, loop = self.trees()[0]
                decoder = self.decoder(method, sampling, nodes, loop, length)
                samples = Samples()
                for n, (start, _) in enumerate(product(starts, range(batches))):
                    rows = [start] * SAMPLES_AT_ONCE
                    samples.add(start, decoder(rows, SAMPLE_TOKENS, self._seed(n)))
                    progress.advance(task)
                fits[sampling] = samples.fit(self.prober, sampling)
            progress.remove_task(task)
        return fits


def run(config: LosslessConfig, console: Console) -> bool:
    """Checks and reports; returns whether nothing but rounding differs."""
    check_outputs(config.json)
    lossless = Lossless(config, console)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    for reason in lossless.left_out:
        console.print(f"left out: {reason}")
    outcomes = list(lossless.compare())
    loops = " and ".join(config.loops)
    for name in lossless.methods:
        sizes = ", ".join(
            dict.fromkeys(str(n) for method, n, _ in lossless.trees() if method == name)
        )
        title = (
            f"{METHODS[name].title} against plain decoding: trees of {sizes} nodes, {loops} loop"
        )
        of_method = [outcome for outcome in outcomes if outcome.method == name]
        console.print(report.equality_table(title, of_method))
    if any(outcome.divergences for outcome in outcomes):
        console.print(report.divergence_table(outcomes, lossless.tokenizer))
    fits = lossless.fit()
    if fits:
        console.print(report.fit_table(fits))
    passed, verdict = report.verdict(outcomes, fits)
    if config.json:
        content = {
            "environment": environment(),
            "config": dataclasses.asdict(config),
            "lossless": passed,
            "settings": [dataclasses.asdict(outcome) | _derived(outcome) for outcome in outcomes],
            "distribution": [
                {"sampling": dataclasses.asdict(how), **dataclasses.asdict(fit), "p": fit.p}
                for how, fit in fits.items()
            ],
        }
        write_json(config.json, content)
    console.print(verdict, soft_wrap=True)
    return passed


def _derived(outcome: Outcome) -> dict[str, Any]:
    divergences = [
        dataclasses.asdict(found) | {"verdict": found.verdict} for found in outcome.divergences
    ]
    return {"tau": outcome.tau, "divergences": divergences}


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: not lossless; 2: bad input, told in one line."""
    with one_line_errors():
        config = tyro.cli(LosslessConfig, args=args, description=__doc__)
        if not run(config, Console()):
            sys.exit(1)


if __name__ == "__main__":
    main()
