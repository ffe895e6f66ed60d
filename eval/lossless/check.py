"""Compares drafting with plain decoding in every setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product

import jax
import numpy as np
from rich.console import Console

from dart_jax.decoding.decoder import Decoder, Loop
from dart_jax.decoding.loop import Generation
from dart_jax.decoding.sampling import Sampling
from dart_jax.progress import progress_bar
from eval.benchmarks.prompts import demo_prompts
from eval.lossless import report
from eval.lossless.config import (
    FUNCTION_TOKENS,
    PROMPT_TOKENS,
    SAMPLE_TOKENS,
    SAMPLES_AT_ONCE,
    START_TOKENS,
    STARTS,
    LosslessConfig,
)
from eval.lossless.distribution import Fit, Samples
from eval.lossless.divergence import examine
from eval.lossless.literal_sampling import softmax
from eval.lossless.outcome import Outcome
from eval.lossless.random_sizes import RandomMemory
from eval.lossless.rounding import Prober
from eval.methods.registry import METHODS, PLAIN, adaptive, decoder
from eval.methods.tree_size import LEVEL_DECAYS, SIZES, Tree


class Lossless:
    """One check: its models, prompts and progress bar."""

    def __init__(self, config: LosslessConfig, console: Console):
        self.config = config
        base = config.load()
        self.models, self.left_out = config.models(base)
        self.tokenizer = base.tokenizer
        functions = demo_prompts(self.tokenizer, config.prompts, FUNCTION_TOKENS)
        self.prompts = [prompt.tokens[:PROMPT_TOKENS] for prompt in functions]
        self.sizes = (*SIZES, 0) if config.grid else config.tree_nodes
        self.prober = Prober(base, max(*self.sizes, 1))
        self.progress = progress_bar(console)

    @property
    def methods(self) -> list[str]:
        """Names of the drafting methods."""
        return [name for name in self.models if name != PLAIN]

    def decoder(
        self, name: str, sampling: Sampling, nodes: int, loop: Loop, length: int
    ) -> Decoder:
        """Returns a decoder. Its trees are deep ones, which test the most; without a number of
        nodes their sizes change at random."""
        tree, decay = Tree(nodes, max(LEVEL_DECAYS)), max(LEVEL_DECAYS)
        if not nodes and name != PLAIN:
            tree = adaptive(self.models[name], 1, decay)
        made = decoder(
            self.models[name],
            tree,
            max_length=length,
            sampling=sampling,
            loop=loop,
            coupled=not self.config.no_coupling,
        )
        return dataclasses.replace(made, memory=RandomMemory())

    def trees(self) -> list[tuple[str, int, Loop]]:
        """Returns method, nodes and loop of every comparison."""
        combinations = product(self.methods, self.sizes, self.config.loop)
        trees: list[tuple[str, int, Loop]] = [
            (name, min(nodes, max(METHODS[name].sizes)), loop) for name, nodes, loop in combinations
        ]
        return list(dict.fromkeys(trees))

    def compare(self) -> Iterator[Outcome]:
        """Yields the outcome of every setting, in turn."""
        config = self.config
        trees = self.trees()
        groups = list(product(config.samplings, config.batch_size))
        with self.progress as progress:
            task = progress.add_task("", total=len(groups) * (len(trees) + 1))
            for sampling, size in groups:
                name = f"{report.describe(sampling)}, batch {size}"
                progress.update(task, description=f"{name}, plain")
                plain = self._decode(PLAIN, sampling, size, 0, "fused")
                progress.advance(task)
                for method, nodes, loop in trees:
                    size_name = f"{nodes} nodes" if nodes else "changing sizes"
                    how = f"{name}, {METHODS[method].title}, {size_name}, {loop} loop"
                    progress.update(task, description=how)
                    drafted = self._decode(method, sampling, size, nodes, loop)
                    yield self._outcome(method, sampling, size, nodes, loop, plain, drafted)
                    progress.advance(task)
            progress.remove_task(task)

    def _decode(
        self, method: str, sampling: Sampling, size: int, nodes: int, loop: Loop
    ) -> list[Generation]:
        new = self.config.max_new_tokens
        decoder = self.decoder(method, sampling, nodes, loop, PROMPT_TOKENS + new)
        batches = enumerate(self._batches(size))
        generations = [decoder(batch, new, self._seed(n)) for n, batch in batches]
        jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        return generations

    def _batches(self, size: int) -> list[list[np.ndarray]]:
        return [self.prompts[i : i + size] for i in range(0, len(self.prompts), size)]

    def _seed(self, n: int) -> int:
        """Returns the seed of batch n."""
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
        rows = [
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
            prompts=len(rows),
            tokens=sum(len(tokens) for generation in plain for tokens in generation.tokens),
            steps=sum(int(generation.steps.sum()) for generation in drafted),
            divergences=[divergence for divergence in rows if divergence],
        )

    def _starts(self) -> list[np.ndarray]:
        """Returns the prompt prefixes that the target continues with most confidence.

        With others, hardly any text would be sampled often enough to be tested.
        """
        starts = [prompt[:START_TOKENS] for prompt in self.prompts]
        starts.sort(key=lambda start: -softmax(self.prober(start).logits).max())
        return starts[:STARTS]

    def fit(self) -> dict[Sampling, Fit]:
        """Runs the distribution test for all sampling parameters but greedy ones."""
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
