"""Plain decoding against ways of drafting: tokens per second, speed-up, tau, and where time went.

    python -m eval.speedup
    python -m eval.speedup --method all --bench mt_bench,humaneval --data-dir benchmarks

Without arguments it runs the demo model, which comes with the package, on functions of Python
library modules that the model never saw.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from rich.console import Console

from dart_jax.errors import UserError, one_line_errors
from dart_jax.generation import length_bucket
from dart_jax.model import DartModel, Decoder, Loop
from dart_jax.sampling import Sampling
from eval import benchmarks, plots, report
from eval.measure import Run, Summary, measure, summarize
from eval.methods import METHODS, PLAIN, MethodChoice, decoder
from eval.prompts import Prompt, asked, demo_prompts, in_batches, warm_up_prompts
from eval.tree_size import LEVEL_DECAYS, SIZES, Tree, fastest
from train.corpus import stdlib
from train.outputs import check_outputs, environment, revision, write_json, write_text

DEMO = "demo"

# Longest prompt taken into the demo benchmark.
PROMPT_TOKENS = 128

# Prompts that trees are chosen on, at least.
_WARM_UP = 4


@dataclasses.dataclass(frozen=True)
class SpeedupConfig(MethodChoice):
    """What to measure, and on what."""

    bench: str = DEMO
    """Between commas: alpaca, code_alpaca, humaneval, livecodebench, math500, mbpp, mt_bench (the
    paper's), gsm8k, spec_bench, files of questions, or all; demo asks for library functions."""
    data_dir: Path | None = None
    """Where the benchmarks' files lie; by default they come from the Hugging Face hub."""
    thinking: bool = False
    """Let the chat template's model think."""
    temperature: tuple[float, ...] = (0.0,)
    """0 takes the most likely token. Each is measured in turn."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this much probability."""
    batch_size: tuple[int, ...] = (1,)
    """Prompts decoded together. Each is measured in turn."""
    max_new_tokens: int = 128
    """Tokens to generate for each prompt."""
    max_length: int | None = None
    """Cache rows: prompt and new tokens together; by default what the longest prompt needs."""
    prompts: int = 8
    """Questions of each benchmark, or functions of each of the demo's four groups."""
    tree_nodes: Literal["auto"] | int = "auto"
    """Nodes of the draft trees; auto takes the fastest on warm-up prompts, for each method."""
    level_decay: Literal["auto"] | float = "auto"
    """Exponent of the search's level weight, 0.7 in the paper; auto takes the faster of 0.7 and
    2.5 on warm-up prompts."""
    acceptance: float | None = None
    """Tokens that every verification of a draft emits, whatever the target thinks of it: speed
    apart from the drafter's quality, for targets without their real weights."""
    loop: Loop = "fused"
    """fused: the generation is one jitted program that calls the search; host: step and search in
    turn, as when streaming."""
    repeats: int = 3
    """Measured passes over all prompts."""
    seed: int = 0
    """Of the target's draws; all methods get the same."""
    sweep: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also measure DART with every tree size, with and without n-gram model, and both loops."""
    json: Path | None = None
    """Write everything measured to this file."""
    markdown: Path | None = None
    """Write the tables to this file."""
    plot: Path | None = None
    """Draw the figure into this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_new_tokens", "prompts", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        for name in ("temperature", "batch_size"):
            if not getattr(self, name):
                raise UserError(f"--{name.replace('_', '-')} needs at least one value")
        if min(self.batch_size) < 1:
            raise UserError("--batch-size must be at least 1")
        if max(self.batch_size) > self.prompts:
            raise UserError(
                f"--batch-size {max(self.batch_size)} needs --prompts of at least as many: a batch "
                "holds prompts of one group"
            )
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}")
        if self.tree_nodes != "auto" and self.tree_nodes < 1:
            raise UserError("--tree-nodes must be at least 1")
        if self.level_decay != "auto" and not 0 <= self.level_decay < float("inf"):
            raise UserError("--level-decay must be 0 or a positive number")
        if self.acceptance is not None and not 1 <= self.acceptance < float("inf"):
            raise UserError("--acceptance must be at least 1: a verification emits a token")
        _ = self.samplings, self.benches

    @property
    def samplings(self) -> list[Sampling]:
        """How the target draws, in turn; raises UserError if a value is out of range."""
        return [Sampling(each, self.top_k, self.top_p) for each in self.temperature]

    @property
    def benches(self) -> tuple[str, ...]:
        """Names of benchmarks, or the demo's alone; raises UserError if there is none such."""
        return (DEMO,) if self.bench == DEMO else benchmarks.parse_names(self.bench)


class Bench(NamedTuple):
    """A benchmark's prompts.

    Attributes:
      name: the benchmark's.
      title: in tables.
      source: file and line of its first question.
      prompts: that are reported.
      warm_up: that trees are chosen on.
    """

    name: str
    title: str
    source: str
    prompts: list[Prompt]
    warm_up: list[Prompt]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One comparison of all methods.

    Attributes:
      bench: the benchmark's name.
      title: the benchmark's, in tables.
      source: where its questions come from.
      temperature: of the target's draws.
      batch_size: prompts decoded together.
      trees: chosen for each method.
      groups: group of prompts -> method -> what its runs come to; `all` pools the groups.
    """

    bench: str
    title: str
    source: str
    temperature: float
    batch_size: int
    trees: dict[str, Tree]
    groups: dict[str, dict[str, Summary]]

    @property
    def all(self) -> dict[str, Summary]:
        """By method, of all prompts."""
        return self.groups["all"]


class Speedup:
    """One measurement: models, prompts and progress bar."""

    def __init__(self, config: SpeedupConfig, console: Console):
        self.config = config
        self.console = console
        base = config.load()
        self.models, self.left_out = config.models(base)
        self.progress = report.progress_bar(console)
        self.benches = [self._bench(base, name) for name in config.benches]
        every = [prompt for bench in self.benches for prompt in (*bench.prompts, *bench.warm_up)]
        longest = max(len(prompt.tokens) for prompt in every)
        demo = PROMPT_TOKENS if config.bench == DEMO else longest
        self.max_length = config.max_length or demo + config.max_new_tokens
        if longest + config.max_new_tokens > self.max_length:
            raise UserError(
                f"a prompt of {longest} tokens and {config.max_new_tokens} new ones do not fit "
                f"into a cache of {self.max_length}; raise --max-length"
            )

    def _bench(self, base: DartModel, name: str) -> Bench:
        config, tokenizer = self.config, base.tokenizer
        count = max(_WARM_UP, *config.batch_size)
        if name == DEMO:
            prompts = demo_prompts(tokenizer, config.prompts, PROMPT_TOKENS)
            warm_up = warm_up_prompts(tokenizer, count, PROMPT_TOKENS // 2)
            return Bench(name, "demo", str(stdlib()), prompts, warm_up)
        # Trees are chosen on questions behind those that are reported, where there are such.
        questions = benchmarks.load(name, config.data_dir, config.prompts + count)
        found = benchmarks.find(name)
        reported, rest = questions[: config.prompts], questions[config.prompts :]
        length = min(config.max_length or base.target.max_length, base.target.max_length)

        def answer(prompts: list[np.ndarray]) -> list[np.ndarray]:
            room = length_bucket(max(map(len, prompts)) + config.max_new_tokens)
            plain = self.models[PLAIN].decoder(
                nodes=0, max_length=min(room, length), sampling=config.samplings[0]
            )
            return plain(prompts, config.max_new_tokens, config.seed).tokens

        with self.progress:
            made = [
                asked(some, tokenizer, answer, thinking=config.thinking, batch=count)
                for some in (reported, rest or reported[:count])
            ]
        most = length - config.max_new_tokens
        prompts, warm_up = ([p for p in some if len(p.tokens) <= most] for some in made)
        if len(prompts) < len(made[0]):
            self.console.print(
                f"{found.title}: {len(made[0]) - len(prompts)} prompts of more than {most} tokens "
                "left out"
            )
        if not prompts:
            raise UserError(f"no prompt of {name} is within {most} tokens; raise --max-length")
        warm_up = warm_up or prompts[:count]
        return Bench(found.name, found.title, questions[0].where, prompts, warm_up)

    def decoder(
        self, name: str, tree: Tree, sampling: Sampling, loop: Loop | None = None
    ) -> Decoder:
        """A method's decoder."""
        return decoder(
            self.models[name],
            tree,
            max_length=self.max_length,
            sampling=sampling,
            loop=loop or self.config.loop,
            acceptance=self.config.acceptance,
        )

    def tree(self, name: str, bench: Bench, sampling: Sampling, batch_size: int) -> Tree:
        """A method's tree; what is left to `auto` is the fastest on warm-up prompts."""
        nodes = None if self.config.tree_nodes == "auto" else self.config.tree_nodes
        decay = None if self.config.level_decay == "auto" else self.config.level_decay
        trees = METHODS[name].trees(nodes, decay)
        if len(trees) == 1:
            return trees[0]
        title = METHODS[name].title
        with self.progress as progress:
            task = progress.add_task(f"{title}: choosing the tree", total=len(trees))
            rates = fastest(
                lambda tree: self.decoder(name, tree, sampling),
                trees,
                in_batches(bench.warm_up, batch_size),
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
        trees = {name: self.tree(name, bench, sampling, batch_size) for name in self.models}
        decoders = {name: self.decoder(name, tree, sampling) for name, tree in trees.items()}
        repeats = self.compare(
            f"measuring {bench.title}", decoders, bench, batch_size, self.config.repeats
        )
        return Setting(
            bench.name,
            bench.title,
            bench.source,
            sampling.temperature,
            batch_size,
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
        plain = self.decoder(PLAIN, Tree(0), sampling)
        rows = []
        for tree, ngram, how in dict.fromkeys(cases):
            model = self.models["dart"]
            dart = decoder(
                model if ngram else dataclasses.replace(model, ngram=None),
                tree,
                max_length=self.max_length,
                sampling=sampling,
                loop=how,
                acceptance=self.config.acceptance,
            )
            runs = self.compare(str(tree), {PLAIN: plain, "dart": dart}, bench, size, 1)
            rows.append((tree, ngram, how, summarize(runs, "dart", PLAIN)))
        return rows


def by_group(repeats: list[list[Run]], methods: Sequence[str]) -> dict[str, dict[str, Summary]]:
    """A summary for every prompt group and method, and one of all."""
    groups = dict.fromkeys(run.group for run in repeats[0])
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
        write_json(config.json, as_json(config, settings, swept))
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
    return (
        f"{setting.title}: T = {setting.temperature:g}, batch {setting.batch_size}, "
        f"{config.max_new_tokens} new tokens, {ngram}, {config.loop} loop{imposed} ({trees})"
    )


def as_json(
    config: SpeedupConfig,
    settings: list[Setting],
    swept: list[tuple[Tree, bool, Loop, Summary]],
) -> dict[str, Any]:
    """Everything that was measured, and what is needed to measure it again."""
    return {
        "environment": environment(),
        "revision": revision(),
        "config": dataclasses.asdict(config),
        "settings": [
            {
                "bench": setting.bench,
                "source": setting.source,
                "temperature": setting.temperature,
                "batch_size": setting.batch_size,
                "trees": {name: tree._asdict() for name, tree in setting.trees.items()},
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
