"""Plain decoding against DART: tokens per second, speed-up, tau, and where the time went.

    python -m eval.speedup

Without arguments it runs the demo model, which comes with the package, on functions of Python
library modules that the model never saw.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from dart_jax.errors import UserError, one_line_errors
from dart_jax.model import Decoder, Loop
from dart_jax.pruner import SearchConfig
from dart_jax.sampling import Sampling
from eval import report
from eval.measure import Run, Summary, measure, summarize
from eval.model_choice import ModelChoice
from eval.prompts import Prompt, demo_prompts, warm_up_prompts
from eval.tree_size import LEVEL_DECAYS, SIZES, Tree, fastest
from train.outputs import check_outputs, environment, write_json

# Longest prompt taken into the demo benchmark.
PROMPT_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class SpeedupConfig(ModelChoice):
    """What to measure, and on what."""

    temperature: float = 0.0
    """0 takes the most likely token."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this much probability."""
    batch_size: int = 1
    """Prompts decoded together."""
    max_new_tokens: int = 128
    """Tokens to generate for each prompt."""
    max_length: int | None = None
    """Cache rows: prompt and new tokens together; by default what the longest prompt needs."""
    prompts: int = 8
    """Prompts of each of the four groups."""
    tree_nodes: Literal["auto"] | int = "auto"
    """Nodes of the draft tree; auto takes the fastest on warm-up prompts."""
    level_decay: Literal["auto"] | float = "auto"
    """Exponent of the search's level weight, 0.7 in the paper; auto takes the faster of 0.7 and
    2.5 on warm-up prompts."""
    loop: Loop = "fused"
    """fused: the generation is one jitted program that calls the search; host: step and search in
    turn, as when streaming."""
    repeats: int = 3
    """Measured passes over all prompts."""
    seed: int = 0
    """Of the target's draws; plain decoding and DART get the same."""
    sweep: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also measure every tree size with and without n-gram model, and both loops."""
    json: Path | None = None
    """Write everything measured to this file."""
    plot: Path | None = None
    """Draw the figure into this file."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_new_tokens", "prompts", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if self.batch_size > self.prompts:
            raise UserError(
                f"--batch-size {self.batch_size} needs --prompts of at least as many: a batch "
                "holds prompts of one group"
            )
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}")
        if self.tree_nodes != "auto" and self.tree_nodes < 1:
            raise UserError("--tree-nodes must be at least 1")
        if self.level_decay != "auto" and not 0 <= self.level_decay < float("inf"):
            raise UserError("--level-decay must be 0 or a positive number")


class Speedup:
    """One measurement: model, prompts and progress bar."""

    def __init__(self, config: SpeedupConfig, console: Console):
        self.config = config
        self.console = console
        self.sampling = Sampling(config.temperature, config.top_k, config.top_p)
        self.model = config.load()
        self.prompts = demo_prompts(self.model.tokenizer, config.prompts, PROMPT_TOKENS)
        self.max_length = config.max_length or PROMPT_TOKENS + config.max_new_tokens
        longest = max(len(prompt.tokens) for prompt in self.prompts)
        if longest + config.max_new_tokens > self.max_length:
            raise UserError(
                f"a prompt of {longest} tokens and {config.max_new_tokens} new ones do not fit "
                f"into a cache of {self.max_length}; raise --max-length"
            )
        self.progress = report.progress_bar(console)

    def plain(self) -> Decoder:
        """The baseline: the target alone, always as one program on the device."""
        return self.model.decoder(nodes=0, max_length=self.max_length, sampling=self.sampling)

    def decoder(self, tree: Tree, use_ngram: bool = True, loop: Loop | None = None) -> Decoder:
        """DART with trees of one kind."""
        return self.model.decoder(
            nodes=tree.nodes,
            max_length=self.max_length,
            sampling=self.sampling,
            use_ngram=use_ngram,
            search=SearchConfig(level_decay=tree.level_decay),
            loop=loop or self.config.loop,
        )

    def tree(self) -> Tree:
        """The tree asked for; what is left to `auto` is the fastest on warm-up prompts."""
        sizes, decays = self.config.tree_nodes, self.config.level_decay
        trees = [
            Tree(nodes, decay)
            for nodes in (SIZES if sizes == "auto" else (sizes,))
            for decay in (LEVEL_DECAYS if decays == "auto" else (decays,))
        ]
        if len(trees) == 1:
            return trees[0]
        count = max(4, self.config.batch_size)
        batches = self.batches(warm_up_prompts(self.model.tokenizer, count, PROMPT_TOKENS // 2))
        with self.progress as progress:
            task = progress.add_task("choosing the tree", total=len(trees))
            rates = fastest(
                self.decoder,
                trees,
                batches,
                max_new_tokens=self.config.max_new_tokens,
                seed=self.config.seed,
                advance=lambda: progress.advance(task),
            )
            progress.remove_task(task)
        self.console.print(report.tree_table(rates))
        return next(iter(rates))

    def batches(self, prompts: list[Prompt]) -> list[list[Prompt]]:
        """Prompts of one group decoded together."""
        size = self.config.batch_size
        groups = [list(members) for _, members in groupby(prompts, key=lambda p: p.group)]
        return [group[i : i + size] for group in groups for i in range(0, len(group), size)]

    def compare(self, name: str, dart: Decoder, repeats: int) -> list[list[Run]]:
        """Plain decoding against one way of drafting, on all prompts."""
        batches = self.batches(self.prompts)
        with self.progress as progress:
            task = progress.add_task(name, total=len(batches) * (repeats + 1))
            runs = measure(
                self.plain(),
                dart,
                batches,
                max_new_tokens=self.config.max_new_tokens,
                repeats=repeats,
                seed=self.config.seed,
                advance=lambda: progress.advance(task),
            )
            progress.remove_task(task)
        return runs

    def sweep(self, chosen: Tree) -> list[tuple[Tree, bool, Loop, Summary]]:
        """Every tree size with and without n-gram model; then both loops at the size chosen."""
        loop: Loop = self.config.loop
        other: Loop = "host" if loop == "fused" else "fused"
        has_ngram = self.model.ngram is not None
        used = (True, False) if has_ngram else (False,)
        sizes = [Tree(nodes, chosen.level_decay) for nodes in SIZES]
        both = [Tree(nodes, decay) for nodes in SIZES for decay in LEVEL_DECAYS]
        cases: list[tuple[Tree, bool, Loop]] = []
        cases.extend((tree, ngram, loop) for tree in sizes for ngram in used)
        cases.extend((tree, has_ngram, loop) for tree in both)
        cases.append((chosen, has_ngram, other))
        return [
            (*case, summarize(self.compare(f"{case[0].nodes} nodes", self.decoder(*case), 1)))
            for case in dict.fromkeys(cases)
        ]


def by_group(repeats: list[list[Run]]) -> dict[str, Summary]:
    """A summary for every prompt group, and one of all."""
    groups = dict.fromkeys(run.group for run in repeats[0])
    rows = {
        group: summarize([[run for run in runs if run.group == group] for runs in repeats])
        for group in groups
    }
    return {**rows, "all": summarize(repeats)}


def run(config: SpeedupConfig, console: Console) -> None:
    """Measures and reports."""
    check_outputs(config.json, config.plot)
    speedup = Speedup(config, console)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    tree = speedup.tree()
    repeats = speedup.compare("measuring", speedup.decoder(tree), config.repeats)
    rows = by_group(repeats)
    ngram = "no n-gram model" if speedup.model.ngram is None else "n-gram model"
    title = (
        f"T = {config.temperature:g}, batch {config.batch_size}, {config.max_new_tokens} new "
        f"tokens, tree of {tree.nodes} nodes (level decay {tree.level_decay:g}), {ngram}, "
        f"{config.loop} loop"
    )
    console.print(report.speedup_table(title, rows))
    console.print(report.time_table(rows))
    swept = speedup.sweep(tree) if config.sweep else []
    if swept:
        console.print(report.sweep_table(swept))
    if config.json:
        write_json(
            config.json,
            {
                "environment": environment(),
                "config": dataclasses.asdict(config),
                "tree": tree._asdict(),
                "groups": {name: _as_json(row) for name, row in rows.items()},
                "sweep": [
                    {**swept_tree._asdict(), "ngram": used, "loop": loop, **_as_json(row)}
                    for swept_tree, used, loop, row in swept
                ],
            },
        )
    if config.plot:
        report.write_plot(config.plot, rows)


def _as_json(row: Summary) -> dict:
    return {**dataclasses.asdict(row), "speedup": row.speedup, "accepted": row.accepted}


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with one_line_errors():
        run(tyro.cli(SpeedupConfig, args=args, description=__doc__), Console())


if __name__ == "__main__":
    main()
