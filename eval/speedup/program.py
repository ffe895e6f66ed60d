"""The program `eval.speedup`: measures plain decoding and the drafting methods in every setting,
prints and writes the report."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax.data.stdlib import HELD_OUT, stdlib
from dart_jax.decoding.options import Sampling
from dart_jax.engine.shapes import length_bucket
from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.model import DartModel
from dart_jax.models.networks.pure import dtype_of
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import environment_in_words, write_report
from dart_jax.programs.tables import show
from dart_jax.progress import progress_bars, stage
from eval.benchmarks.prompts import (
    PROMPT_TOKENS,
    demo_prompts,
    long_prompt,
    long_question,
    question_prompts,
)
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import DEMO, find, load_all
from eval.methods.decoding import Decoder
from eval.methods.measure import Run, Summary, measure, summarize
from eval.methods.registry import METHODS, PLAIN, Tree, decoder, models_of, tree
from eval.speedup import tables
from eval.speedup.config import SpeedupConfig
from eval.speedup.tables import Setting, Workload


def run(config: SpeedupConfig, console: Console) -> None:
    """Measures, prints and writes the reports, anew after each setting."""
    check_outputs(config.json, drawing=config.plot)
    config = config.decided()
    speedup = Speedup(config, console)
    console.print(environment_in_words())
    for reason in speedup.left_out:
        console.print(f"left out: {reason}", markup=False)
    settings: list[Setting] = []
    output: list[Table] = []
    title = f"Speed of {config.shape or config.title} by method"

    def report(*made: Table) -> None:
        show(console, *made)
        output.extend(made)
        content = [setting.as_json() for setting in settings]
        write_report(config, title, output, dtype=speedup.dtype, settings=content)
        if config.plot:
            tables.write_figure(config.plot, settings)

    for workload, sampling, size in product(speedup.workloads, config.samplings, config.batch_size):
        setting = speedup.setting(workload, sampling, size)
        settings.append(setting)
        table = tables.speedup_table(title_of(config, setting), setting.shown)
        report(table, tables.time_table(setting.all))
    if len(settings) > 1:
        report(*tables.overview_tables(settings))


def title_of(config: SpeedupConfig, setting: Setting) -> str:
    """Returns the title of a setting's table."""
    trees = "; ".join(
        f"{METHODS[name].title} {tree}" for name, tree in setting.trees.items() if tree.nodes
    )
    ngram = "no n-gram model" if config.ngram_model is None else "n-gram model"
    imposed = "" if config.acceptance is None else f", tau {config.acceptance:g} imposed"
    schema = ""
    if config.json_schema is not None:
        schema = f", texts follow {config.json_schema.name}"
    elif setting.workload.schema is not None and config.acceptance is None:
        schema = ", texts follow the benchmark's schema"
    lengths = setting.workload.prompt_tokens
    least, most = (f"{number:,}" for number in (min(lengths), max(lengths)))
    prompts = f"prompts of {most if least == most else f'{least} to {most}'} tokens"
    weights = "" if config.shape is None else f"random weights in the shape of {config.shape}, "
    return (
        f"{setting.workload.title}: {weights}T = {setting.temperature:g}, batch "
        f"{setting.batch_size}, {prompts}, {config.max_new_tokens} new tokens, {ngram}{imposed}"
        f"{schema} "
        f"({trees})"
    )


class Speedup:
    """One measurement: its models and workloads."""

    def __init__(self, config: SpeedupConfig, console: Console):
        """Reads the questions, then loads the model; raises UserError if one of these cannot be
        read, a prompt or a context is too long, or a benchmark has too few prompts for a batch."""
        self.config, self.console = config, console
        _ = config.structured_outputs  # an error of its file is reported before the work
        bench, tokenizer = config.bench, config.tokenizer()
        questions, missing = load_all(bench, tokenizer, config.data_dir, config.prompts)
        base = config.load()
        self.models, left_out = models_of(config, base)
        self.left_out = left_out + missing
        positions, longest = base.target.max_length, max(config.context, default=0)
        if longest and longest + config.max_new_tokens > positions:
            raise UserError(
                f"--context {longest} and {config.max_new_tokens} new tokens are beyond the "
                f"target's {positions} positions"
            )
        self.workloads: list[Workload] = []
        with stage("preparing the prompts", console):
            for context in config.context or (None,):
                for name, some in questions.items():
                    every = benchmark_workload(config, base, console, name, some, context)
                    self.workloads.append(every)
                if not questions:
                    self.workloads.append(demo_workload(config, base, console, context))
        for workload in self.workloads:
            count, most = len(workload.prompts), max(config.batch_size)
            if most > count:
                raise UserError(
                    f"--batch-size {most} needs as many prompts, and {workload.name} has {count}; "
                    "raise --prompts, or lower the batch size"
                )
            # Texts that are too long are reported before the work.
            self.decoder(PLAIN, Tree(0), workload, config.samplings[0]).engine(1)

    @property
    def dtype(self) -> str:
        """dtype of the target's weights."""
        return str(dtype_of(self.models[PLAIN].params["target"]))

    def decoder(self, name: str, tree: Tree, workload: Workload, sampling: Sampling) -> Decoder:
        """Returns the decoder of a method."""
        return decoder(
            self.models[name],
            tree,
            max_length=workload.max_length,
            sampling=sampling,
            acceptance=self.config.acceptance,
            coupled=not self.config.no_coupling,
            structured_outputs=self._outputs(workload),
        )

    def _outputs(self, workload: Workload) -> StructuredOutputs | None:
        """The structure of a workload's texts; with an imposed tau they have none."""
        schema = workload.schema
        if self.config.json_schema is None and schema is not None and not self.config.acceptance:
            return StructuredOutputs(json=schema)
        return self.config.structured_outputs

    def setting(self, workload: Workload, sampling: Sampling, batch_size: int) -> Setting:
        """Compares all methods in one setting."""
        config, prompts = self.config, workload.prompts
        # They may mix prompts of several groups: small groups would leave batches unfilled.
        batches = [prompts[i : i + batch_size] for i in range(0, len(prompts), batch_size)]
        if len(batches[-1]) < batch_size:
            self.console.print(
                f"{workload.title}: the last batch holds {len(batches[-1])} prompts, not "
                f"{batch_size}"
            )
        trees = {
            name: tree(
                model, config.tree_nodes, config.level_decay, batch_size, chain=METHODS[name].chain
            )
            for name, model in self.models.items()
        }
        title = f"T = {sampling.temperature:g}, batch {batch_size}: {workload.title}"
        with progress_bars(self.console) as bar:
            # How long it takes tells nothing of the passes after it.
            task = bar.add_task(f"{title}: a first pass, which compiles", total=None)
            runs_done = itertools.count(1)

            def advance() -> None:
                more = next(runs_done) - len(batches)
                if more == 0:
                    bar.reset(task, total=len(batches) * config.repeats)
                    bar.update(task, description=title)
                elif more > 0:
                    bar.advance(task)

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


def by_group(repeats: list[list[Run]], methods: Sequence[str]) -> dict[str, dict[str, Summary]]:
    """Returns a summary per prompt group and method, and one of all prompts; only the latter if
    some batches mix groups, since their time belongs to no single group."""
    names = list(dict.fromkeys(run.group for run in repeats[0]))
    parts = {
        name: [[run for run in runs if run.group == name] for runs in repeats]
        for name in names
        if name is not None and None not in names
    }
    return {
        name: {method: summarize(runs, method, PLAIN) for method in methods}
        for name, runs in {**parts, "all": repeats}.items()
    }


def demo_workload(
    config: SpeedupConfig, base: DartModel, console: Console, context: int | None
) -> Workload:
    """Returns functions of library modules; raises UserError as `demo_prompts`."""
    prompts = demo_prompts(base.tokenizer, config.prompts)
    if len(prompts) < (requested := config.prompts * len(HELD_OUT)):
        console.print(
            f"demo: {len(prompts)} prompts, not {requested}: this library has no more documented "
            f"functions within {PROMPT_TOKENS} tokens"
        )
    longest = PROMPT_TOKENS
    if context is not None:
        prompts = [long_prompt(p, n, base.tokenizer, context) for n, p in enumerate(prompts)]
        longest = max(longest, context)
    length = longest + config.max_new_tokens
    return Workload(DEMO, DEMO, str(stdlib()), prompts, length, context)


def benchmark_workload(
    config: SpeedupConfig,
    base: DartModel,
    console: Console,
    name: str,
    questions: Sequence[Question],
    context: int | None,
) -> Workload:
    """Returns the prompts of a benchmark, or its file; later turns follow the answers of plain
    decoding. `context`: tokens to which the first turns' prompts are lengthened, if any. Raises
    UserError if no prompt is short enough."""
    benchmark, model = find(name), base.with_drafter(None)

    def answer(prompt: np.ndarray) -> np.ndarray:
        room = length_bucket(len(prompt) + config.max_new_tokens)
        length = min(room, base.target.max_length)
        plain = Decoder(model, length, config.samplings[0], tree_nodes=0)
        return plain([prompt], config.max_new_tokens, config.seed).tokens[0]

    if context is not None:
        questions = [
            long_question(question, n, base.tokenizer, context, thinking=config.thinking)
            for n, question in enumerate(questions)
        ]
    every = question_prompts(questions, base.tokenizer, answer, thinking=config.thinking)
    limit = base.target.max_length - config.max_new_tokens
    prompts = [prompt for prompt in every if len(prompt.tokens) <= limit]
    if left_out := len(every) - len(prompts):
        console.print(f"{benchmark.title}: {left_out} prompts of more than {limit} tokens left out")
    if not prompts:
        raise UserError(f"no prompt of {name} is within {limit} tokens")
    length = max(len(prompt.tokens) for prompt in prompts) + config.max_new_tokens
    where, _, line = questions[0].where.rpartition(":")
    sha256 = _sha256(Path(where))
    source = f"{where}:{line}".removeprefix(f"{Path(__file__).parents[2]}/")  # of our own
    name, title, schema = benchmark.name, benchmark.title, benchmark.schema
    return Workload(name, title, source, prompts, length, context, schema, sha256)


@functools.cache  # for all contexts
def _sha256(path: Path) -> str | None:
    """Returns the digest of a file, or None if there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
