"""Plain decoding against ways of drafting: tokens per second, speed-up, tau, and where time went.

    python -m eval.speedup
    python -m eval.speedup --method all --bench mt_bench,humaneval --data-dir benchmarks

Without arguments it runs the demo model, which comes with the package, on functions of Python
library modules that the model never saw.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from itertools import product
from typing import Any

import tyro
from rich.console import Console

from dart_jax.errors import UserError, one_line_errors
from dart_jax.model import Decoder, Loop
from dart_jax.sampling import Sampling
from eval import benchmarks, plots, report
from eval.benches import Bench, asked_bench, demo_bench
from eval.measure import Run, Summary, measure, summarize
from eval.methods import METHODS, PLAIN, decoder
from eval.prompts import in_batches
from eval.questions import Question
from eval.speedup_config import DEMO, SpeedupConfig
from eval.tree_size import LEVEL_DECAYS, REPEATS, SIZES, Tree, fastest
from train.outputs import check_outputs, environment, revision, write_json, write_text


@dataclasses.dataclass(frozen=True)
class Setting:
    """One comparison of all methods.

    Attributes:
      bench: the benchmark's name.
      title: the benchmark's, in tables.
      source: where its questions come from.
      temperature: of the target's draws.
      batch_size: prompts decoded together.
      max_length: cache rows.
      trees: chosen for each method.
      groups: group of prompts -> method -> what its runs come to; `all` pools the groups, and is
        alone where batches hold prompts of several.
    """

    bench: str
    title: str
    source: str
    temperature: float
    batch_size: int
    max_length: int
    trees: dict[str, Tree]
    groups: dict[str, dict[str, Summary]]

    @property
    def all(self) -> dict[str, Summary]:
        """By method, of all prompts."""
        return self.groups["all"]

    @property
    def step_costs(self) -> dict[str, float]:
        """What a method's step takes, in plain decoding's steps, prefill apart."""
        plain = self.all[PLAIN].step_seconds
        return {name: row.step_seconds / plain for name, row in self.all.items()}


class Speedup:
    """One measurement: models, prompts and progress bar."""

    def __init__(self, config: SpeedupConfig, console: Console):
        self.config = config
        self.console = console
        self.progress = report.progress_bar(console)
        questions: dict[str, list[Question]] = {}
        missing: list[str] = []
        if config.bench != DEMO:
            # Before the model: a file that is missing or damaged is told at once.
            most = config.prompts + config.spare
            questions, missing = benchmarks.load_all(config.bench, config.data_dir, most)
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
        self.console.print(report.tree_table(title, rates))
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


def run(config: SpeedupConfig, console: Console) -> None:
    """Measures and reports."""
    check_outputs(config.json, config.markdown, drawing=config.plot)
    speedup = Speedup(config, console)
    if config.sweep and "dart" not in speedup.models:
        raise UserError("--sweep is of DART's trees; add dart to --method")
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    for reason in speedup.left_out:
        console.print(f"left out: {reason}")
    settings = []
    for bench, sampling, size in product(speedup.benches, config.samplings, config.batch_size):
        setting = speedup.setting(bench, sampling, size)
        settings.append(setting)
        console.print(report.speedup_table(title_of(config, setting), setting.groups))
        console.print(report.time_table(setting.all))
    swept = speedup.sweep(settings[0].trees["dart"]) if config.sweep else []
    if swept:
        console.print(report.sweep_table(swept))
    if len(settings) > 1:
        console.print(report.overview_table(settings))
    if config.json:
        write_json(config.json, as_json(config, speedup.dtype, settings, swept))
    if config.markdown:
        write_text(config.markdown, report.markdown(config.target or "", settings))
    if config.plot:
        plots.write(config.plot, settings)


def title_of(config: SpeedupConfig, setting: Setting) -> str:
    """What a table is of."""
    trees = "; ".join(
        f"{METHODS[name].title} {tree}" for name, tree in setting.trees.items() if tree.nodes
    )
    ngram = "no n-gram model" if config.ngram_model is None else "n-gram model"
    imposed = "" if config.acceptance is None else f", tau {config.acceptance:g} imposed"
    weights = "" if config.shape is None else f"random weights in the shape of {config.shape}, "
    return (
        f"{setting.title}: {weights}T = {setting.temperature:g}, batch {setting.batch_size}, "
        f"{config.max_new_tokens} new tokens, {ngram}, {config.loop} loop{imposed} ({trees})"
    )


def as_json(
    config: SpeedupConfig,
    dtype: str,
    settings: list[Setting],
    swept: list[tuple[Tree, bool, Loop, Summary]],
) -> dict[str, Any]:
    """Everything that was measured, and what is needed to measure it again."""
    return {
        "environment": environment(),
        "revision": revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "dtype": dtype,
        "config": dataclasses.asdict(config),
        "settings": [
            {
                "bench": setting.bench,
                "source": setting.source,
                "temperature": setting.temperature,
                "batch_size": setting.batch_size,
                "max_length": setting.max_length,
                "trees": {name: tree._asdict() for name, tree in setting.trees.items()},
                "step_costs": setting.step_costs,
                "groups": {
                    group: {name: row.as_json() for name, row in rows.items()}
                    for group, rows in setting.groups.items()
                },
            }
            for setting in settings
        ],
        "sweep": [
            {**tree._asdict(), "ngram": used, "loop": loop, **row.as_json()}
            for tree, used, loop, row in swept
        ],
    }


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with one_line_errors():
        run(tyro.cli(SpeedupConfig, args=args, description=__doc__), Console())


if __name__ == "__main__":
    main()
