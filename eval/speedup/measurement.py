"""Measures plain decoding and the drafting methods in every setting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import jax
from rich.console import Console

from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.decoder import Decoder
from dart_jax.progress import progress_bar, stage
from eval.benchmarks.prompts import in_batches
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import DEMO, default_bench, load_all
from eval.methods.measure import measure
from eval.methods.registry import METHODS, PLAIN, adaptive, decoder
from eval.methods.tree_size import REPEATS, Tree, fastest
from eval.speedup.config import SpeedupConfig
from eval.speedup.setting import Setting, by_group
from eval.speedup.tables import tree_table
from eval.speedup.workload import Workload, benchmark_workload, demo_workload


class Speedup:
    """One measurement: its models and workloads."""

    def __init__(self, config: SpeedupConfig, console: Console):
        self.config, self.console = config, console
        questions: dict[str, list[Question]] = {}
        missing: list[str] = []

        def load(bench: str) -> None:
            count = config.prompts + config.warm_up
            some, reasons = load_all(bench, config.data_dir, count, config.skip_bad)
            questions.update(some)
            missing.extend(reasons)

        if config.bench not in (None, DEMO):
            load(config.bench)  # before the model, so that damaged files are reported at once
        base = config.load()
        if config.bench is None and (bench := default_bench(base.tokenizer)) != DEMO:
            load(bench)
        self.models, left_out = config.models(base)
        self.left_out = left_out + missing
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
        title, trees = METHODS[name].title, METHODS[name].trees(nodes, decay)
        if len(trees) == 1 or self.config.acceptance is not None:
            return trees[0]
        batches = in_batches(workload.warm_up[: self.config.warm_up], batch_size)
        with self._bar(f"{title}: choosing the tree", (1 + REPEATS) * len(trees)) as advance:
            seconds = fastest(
                lambda tree: self.decoder(name, tree, workload, sampling),
                trees,
                [[prompt.tokens for prompt in batch] for batch in batches],
                self.config.max_new_tokens,
                self.config.seed,
                advance,
            )
        self.console.print(tree_table(title, seconds))
        return next(iter(seconds))

    def setting(self, workload: Workload, sampling: Sampling, batch_size: int) -> Setting:
        """Compares all methods in one setting."""
        config, batches = self.config, in_batches(workload.prompts, batch_size)
        if len(batches[-1]) < batch_size:
            self.console.print(
                f"{workload.title}: the last batch holds {len(batches[-1])} prompts, not "
                f"{batch_size}"
            )
        trees = {name: self.tree(name, workload, sampling, batch_size) for name in self.models}
        title = f"T = {sampling.temperature:g}, batch {batch_size}: {workload.title}"
        with self._bar(title, len(batches) * (config.repeats + 1)) as advance:
            runs = measure(
                {name: self.decoder(name, trees[name], workload, sampling) for name in trees},
                batches,
                max_new_tokens=config.max_new_tokens,
                repeats=config.repeats,
                seed=config.seed,
                advance=advance,
            )
        jax.clear_caches()  # compiled programs use memory mappings, whose number is limited
        groups = by_group(runs, list(trees))
        return Setting(workload, sampling.temperature, batch_size, trees, groups)

    @contextlib.contextmanager
    def _bar(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        with progress_bar(self.console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda: progress.advance(task)
            progress.remove_task(task)
