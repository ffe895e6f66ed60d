"""Measures plain decoding and the drafting methods, setting by setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from dart_jax.decoding.decoder import Decoder, Loop
from dart_jax.decoding.sampling import Sampling
from dart_jax.programs.progress import progress_bar
from eval.benchmarks.prompts import in_batches
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import load_all
from eval.methods.measure import Run, Summary, measure, summarize
from eval.methods.registry import METHODS, PLAIN, decoder
from eval.methods.tree_size import LEVEL_DECAYS, REPEATS, SIZES, Tree, fastest
from eval.speedup.config import DEMO, SpeedupConfig
from eval.speedup.selection import Bench, asked_bench, demo_bench
from eval.speedup.setting import Setting
from eval.speedup.tables import tree_table


class Speedup:
    """One measurement: models, prompts and progress bar."""

    def __init__(self, config: SpeedupConfig, console: Console):
        self.config = config
        self.console = console
        self.progress = progress_bar(console)
        questions: dict[str, list[Question]] = {}
        missing: list[str] = []
        if config.bench != DEMO:
            # Before the model: a file that is missing or damaged is told at once.
            most = config.prompts + config.spare
            questions, missing = load_all(config.bench, config.data_dir, most)
        base = config.load()
        self.models, self.left_out = config.models(base)
        self.left_out += missing
        if config.bench == DEMO:
            self.benches = [demo_bench(config, base, console)]
        else:
            with console.status("the answers that later turns stand behind"):
                self.benches = [
                    asked_bench(config, base, console, name, some)
                    for name, some in questions.items()
                ]

    @property
    def dtype(self) -> str:
        """Of the target's weights."""
        return str(self.models[PLAIN].params["target"]["embed_tokens"].dtype)

    def decoder(self, name: str, tree: Tree, bench: Bench, sampling: Sampling) -> Decoder:
        """A method's decoder."""
        return decoder(
            self.models[name],
            tree,
            max_length=bench.max_length,
            sampling=sampling,
            loop=self.config.loop,
            acceptance=self.config.acceptance,
        )

    def tree(self, name: str, bench: Bench, sampling: Sampling, batch_size: int) -> Tree:
        """A method's tree; what is left to `auto` is the fastest on warm-up prompts, or the paper's
        where a tau is imposed, which tells nothing of trees."""
        nodes = None if self.config.tree_nodes == "auto" else self.config.tree_nodes
        decay = None if self.config.level_decay == "auto" else self.config.level_decay
        trees = METHODS[name].trees(nodes, decay)
        if len(trees) == 1 or self.config.acceptance is not None:
            return trees[0]
        title = METHODS[name].title
        prompts = bench.warm_up[: self.config.warm_up(batch_size)]
        with self.progress as progress:
            task = progress.add_task(
                f"{title}: choosing the tree", total=(1 + REPEATS) * len(trees)
            )
            rates = fastest(
                lambda tree: self.decoder(name, tree, bench, sampling),
                trees,
                in_batches(prompts, batch_size),
                max_new_tokens=self.config.max_new_tokens,
                seed=self.config.seed,
                advance=lambda: progress.advance(task),
            )
            progress.remove_task(task)
        self.console.print(tree_table(title, rates))
        return next(iter(rates))

    def compare(
        self, name: str, decoders: dict[str, Decoder], bench: Bench, size: int, repeats: int
    ) -> list[list[Run]]:
        """All decoders on all prompts, in turn."""
        batches = in_batches(bench.prompts, size)
        with self.progress as progress:
            task = progress.add_task(name, total=len(batches) * (repeats + 1))
            runs = measure(
                decoders,
                batches,
                max_new_tokens=self.config.max_new_tokens,
                repeats=repeats,
                seed=self.config.seed,
                advance=lambda: progress.advance(task),
            )
            progress.remove_task(task)
        return runs

    def setting(self, bench: Bench, sampling: Sampling, batch_size: int) -> Setting:
        """One comparison of all methods."""
        if over := len(bench.prompts) % batch_size:
            self.console.print(
                f"{bench.title}: the last batch holds {over} prompts, not {batch_size}"
            )
        trees = {name: self.tree(name, bench, sampling, batch_size) for name in self.models}
        decoders = {name: self.decoder(name, tree, bench, sampling) for name, tree in trees.items()}
        repeats = self.compare(
            f"measuring {bench.title}", decoders, bench, batch_size, self.config.repeats
        )
        return Setting(
            bench.name,
            bench.title,
            bench.source,
            sampling.temperature,
            batch_size,
            bench.max_length,
            trees,
            by_group(repeats, list(trees)),
        )

    def sweep(self, chosen: Tree) -> list[tuple[Tree, bool, Loop, Summary]]:
        """Every tree size with and without n-gram model; then both loops at the size chosen."""
        loop: Loop = self.config.loop
        other: Loop = "host" if loop == "fused" else "fused"
        has_ngram = self.models["dart"].ngram is not None
        used = (True, False) if has_ngram else (False,)
        sizes = [Tree(nodes, chosen.level_decay) for nodes in SIZES]
        both = [Tree(nodes, decay) for nodes in SIZES for decay in LEVEL_DECAYS]
        cases: list[tuple[Tree, bool, Loop]] = []
        cases.extend((tree, ngram, loop) for tree in sizes for ngram in used)
        cases.extend((tree, has_ngram, loop) for tree in both)
        cases.append((chosen, has_ngram, other))
        bench, size, sampling = self.benches[0], self.config.batch_size[0], self.config.samplings[0]
        plain = self.decoder(PLAIN, Tree(0), bench, sampling)
        rows = []
        for tree, ngram, how in dict.fromkeys(cases):
            model = self.models["dart"]
            dart = decoder(
                model if ngram else dataclasses.replace(model, ngram=None),
                tree,
                max_length=bench.max_length,
                sampling=sampling,
                loop=how,
            )
            runs = self.compare(str(tree), {PLAIN: plain, "dart": dart}, bench, size, 1)
            rows.append((tree, ngram, how, summarize(runs, "dart", PLAIN)))
        return rows


def by_group(repeats: list[list[Run]], methods: Sequence[str]) -> dict[str, dict[str, Summary]]:
    """A summary for every prompt group and method, and one of all; that alone where there are
    batches of several groups, whose time is no group's."""
    groups = dict.fromkeys(run.group for run in repeats[0] if run.group is not None)
    if any(run.group is None for run in repeats[0]):
        groups = {}
    parts = {
        group: [[run for run in runs if run.group == group] for runs in repeats] for group in groups
    }
    return {
        group: {name: summarize(runs, name, PLAIN) for name in methods}
        for group, runs in {**parts, "all": repeats}.items()
    }
