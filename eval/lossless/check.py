"""Compares drafting with plain decoding in every setting."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import jax
import numpy as np
from rich.console import Console

from dart_jax.decoding.paying import Lessons, Paying
from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.request import SamplingMode
from dart_jax.engine.tree_size import PAUSES, State, TreeSizes
from dart_jax.progress import tracked
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
from eval.lossless.divergence import Case, Outcome, Prober, examine
from eval.lossless.literal_sampling import softmax
from eval.methods.decoding import Decoder, Generation
from eval.methods.registry import METHODS, PLAIN, decoder, models_of, tree

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
        groups = product(self.config.samplings, self.config.batch_size)
        every = [(n, case) for n, group in enumerate(groups) for case in self.cases(*group)]
        last, plain = -1, []
        for group, case in tracked(every, "comparing", self.console):
            if group != last:
                last, plain = group, self._decode(dataclasses.replace(case, method=PLAIN, nodes=0))
            yield self._outcome(case, plain, self._decode(case))

    def _decode(self, case: Case) -> list[Generation]:
        new = self.config.max_new_tokens
        decoder = self.decoder(case, TEXT_TOKENS + new)
        batches = enumerate(self._batches(case.batch_size))
        generations = [decoder(batch, new, self._seed(n)) for n, batch in batches]
        jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        return generations

    def _batches(self, size: int) -> list[list[np.ndarray]]:
        return [self.prompts[i : i + size] for i in range(0, len(self.prompts), size)]

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


# Steps of the longest burst, and how often plain decoding lasts so long that the drafter does not
# follow it.
_STEPS = 6
_REST = 1 / 16


class RandomSizes(TreeSizes):
    """Draws sizes, the nodes that each step verifies, lengths of bursts and pauses; learns
    nothing."""

    def __init__(self, sizes: Mapping[int, Sequence[int]], seed: int):
        super().__init__(sizes)
        self._rng, self._state = np.random.default_rng(seed), State(0, 0)
        self._left, self._rests = 0, False  # steps of the present burst; whether it is a rest

    def choose(self, rows: int, level: SamplingMode) -> State:
        """Returns any size, for some steps."""
        if self._left <= 0:
            size = int(self._rng.choice(self.sizes[rows]))
            self._left = int(self._rng.integers(1, _STEPS + 1))
            self._rests = not size and self._rng.random() < _REST
            paying = None
            if size:
                numbers = self._rng.integers(-1, size + 1, len(Paying.all(size).numbers))
                paying = Paying.all(size)._replace(numbers=numbers.astype(np.int32))
            self._state = State(size, self._left, paying)
        return self._state._replace(left=PAUSES[1] if self._rests else self._left)

    def drafts(self, rows: int, level: SamplingMode) -> bool:
        """Returns True: drafts may follow at any time."""
        return True

    def learn(
        self,
        rows: int,
        level: SamplingMode,
        size: int,
        steps: int,
        lessons: Lessons[np.ndarray] | None,
        seconds: float | None,
        times: np.ndarray | None = None,
    ) -> None:
        """Counts the steps."""
        self._left -= steps
