"""Measures plain decoding and the drafting methods in every setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
from rich.console import Console

from dart_jax.decoding.decoder import Decoder, Loop
from dart_jax.decoding.sampling import Sampling
from dart_jax.progress import progress_bar, stage
from eval.benchmarks.prompts import in_batches
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import OWN, load, load_all
from eval.methods.measure import Run, Summary, measure, rate, summarize
from eval.methods.registry import METHODS, PLAIN, adaptive, decoder
from eval.methods.tree_size import LEVEL_DECAYS, REPEATS, SIZES, Tree, fastest
from eval.speedup.config import DEMO, SpeedupConfig
from eval.speedup.setting import Setting
from eval.speedup.tables import tree_table
from eval.speedup.workload import Workload, benchmark_workload, demo_workload


class Speedup:
    """One measurement: its models, workloads and progress bar."""

    def __init__(self, config: SpeedupConfig, console: Console):
        self.config = config
        self.console = console
        self.progress = progress_bar(console)
        questions: dict[str, list[Question]] = {}
        missing: list[str] = []
        count = config.prompts + config.max_warm_up_count
        if config.bench not in (None, DEMO):
            # Before loading the model, so that missing or damaged files are reported at once.
            questions, missing = load_all(config.bench, config.data_dir, count, config.skip_bad)
        base = config.load()
        if config.bench is None and base.tokenizer.chat_template:
            questions = {OWN.name: load(OWN.name, None, count)}
        self.models, self.left_out = config.models(base)
        self.left_out += missing
        if not questions:
            self.workloads = [demo_workload(config, base, console)]
        else:
            with stage("generating the answers that later turns follow", console):
                self.workloads = [
                    benchmark_workload(config, base, console, name, some)
                    for name, some in questions.items()
                ]
        for workload in self.workloads:  # texts that are too long are reported before the work
            self.decoder(PLAIN, Tree(0), workload, config.samplings[0])

    @property
    def dtype(self) -> str:
        """dtype of the target's weights."""
        return str(self.models[PLAIN].params["target"]["embed_tokens"].dtype)

    def decoder(self, name: str, tree: Tree, workload: Workload, sampling: Sampling) -> Decoder:
        """Returns the decoder of a method."""
        return decoder(
            self.models[name],
            tree,
            max_length=workload.max_length,
            sampling=sampling,
            loop=None if self.config.loop == "auto" else self.config.loop,
            acceptance=self.config.acceptance,
            coupled=not self.config.no_coupling,
        )

    def tree(self, name: str, workload: Workload, sampling: Sampling, batch_size: int) -> Tree:
        """Returns the tree of a method: of changing size, or the fastest on warm-up prompts; if a
        tau is imposed, which says nothing about trees, the level decay is the paper's."""
        decay = None if self.config.level_decay == "auto" else self.config.level_decay
        if self.config.tree_nodes == "auto":
            return adaptive(self.models[name], batch_size, decay)
        nodes = None if self.config.tree_nodes == "fastest" else self.config.tree_nodes
        trees = METHODS[name].trees(nodes, decay)
        if len(trees) == 1 or self.config.acceptance is not None:
            return trees[0]
        title = METHODS[name].title
        prompts = workload.warm_up[: self.config.warm_up_count(batch_size)]
        with self.progress as progress:
            task = progress.add_task(
                f"{title}: choosing the tree", total=(1 + REPEATS) * len(trees)
            )
            rates = fastest(
                lambda tree: self.decoder(name, tree, workload, sampling),
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
        self, name: str, decoders: dict[str, Decoder], workload: Workload, size: int, repeats: int
    ) -> list[list[Run]]:
        """Runs all decoders on all prompts, in turn."""
        batches = in_batches(workload.prompts, size)
        done: list[Run] = []
        with self.progress as progress:
            task = progress.add_task(name, total=len(batches) * (repeats + 1))

            def advance(run: Run) -> None:
                done.append(run)
                # The first pass compiles.
                counted = done[len(batches) :] or done
                rates = (
                    f"{METHODS[name].title} {rate(each.generations[name] for each in counted):,.0f}"
                    for name in decoders
                )
                progress.update(task, advance=1, note=f"tok/s: {', '.join(rates)}")

            runs = measure(
                decoders,
                batches,
                max_new_tokens=self.config.max_new_tokens,
                repeats=repeats,
                seed=self.config.seed,
                advance=advance,
            )
            progress.remove_task(task)
        return runs

    def setting(self, workload: Workload, sampling: Sampling, batch_size: int) -> Setting:
        """Compares all methods in one setting."""
        if remainder := len(workload.prompts) % batch_size:
            self.console.print(
                f"{workload.title}: the last batch holds {remainder} prompts, not {batch_size}"
            )
        trees = {name: self.tree(name, workload, sampling, batch_size) for name in self.models}
        decoders = {
            name: self.decoder(name, tree, workload, sampling) for name, tree in trees.items()
        }
        title = f"T = {sampling.temperature:g}, batch {batch_size}: {workload.title}"
        repeats = self.compare(title, decoders, workload, batch_size, self.config.repeats)
        jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        return Setting(
            workload.name,
            workload.title,
            workload.source,
            sampling.temperature,
            batch_size,
            workload.max_length,
            trees,
            by_group(repeats, list(trees)),
        )

    def sweep(self, chosen: Tree) -> list[tuple[Tree, bool, Loop, Summary]]:
        """Measures DART with every tree, with and without n-gram model, then in the other loop."""
        loop = self.config.search_loop
        other: Loop = "host" if loop == "fused" else "fused"
        has_ngram = self.models["dart"].ngram is not None
        used = (True, False) if has_ngram else (False,)
        sizes = [Tree(nodes, chosen.level_decay) for nodes in SIZES]
        both = [Tree(nodes, decay) for nodes in SIZES for decay in LEVEL_DECAYS]
        cases: list[tuple[Tree, bool, Loop]] = []
        cases.extend((tree, ngram, loop) for tree in sizes for ngram in used)
        cases.extend((tree, has_ngram, loop) for tree in both)
        cases.append((chosen, has_ngram, other))
        workload, sampling = self.workloads[0], self.config.samplings[0]
        size = self.config.batch_size[0]
        plain = self.decoder(PLAIN, Tree(0), workload, sampling)
        rows = []
        for tree, ngram, case_loop in dict.fromkeys(cases):
            model = self.models["dart"]
            dart = decoder(
                model if ngram else dataclasses.replace(model, ngram=None),
                tree,
                max_length=workload.max_length,
                sampling=sampling,
                loop=case_loop,
            )
            runs = self.compare(str(tree), {PLAIN: plain, "dart": dart}, workload, size, 1)
            rows.append((tree, ngram, case_loop, summarize(runs, "dart", PLAIN)))
        return rows


def by_group(repeats: list[list[Run]], methods: Sequence[str]) -> dict[str, dict[str, Summary]]:
    """Returns a summary per prompt group and method, and one of all prompts; only the latter if
    some batches mix groups, since their time belongs to no single group."""
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
