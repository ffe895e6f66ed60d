"""Repeat the paper's experiments, and some others: train and evaluate drafters that differ in one
option.

    python -m train.ablate gamma

Each drafter is a run of `train.drafter` below --work, with the recipe except for the compared
option; the runs share the prepared data and the target's features. Finished runs are reused, and an
interrupted run resumes. All drafters are then evaluated identically: agreement with the target on
held-out rows, and greedy decoding of --questions, or of the demo benchmark's functions. The results
are written to `ablations.md` in --out. For a real model, with the answers of `train.smollm2`:

    python -m train.ablate gamma --recipe train/ablate_smollm2.toml \
        --ngram build/smollm2/ngram.dng --questions gsm8k_test.jsonl code_alpaca.json
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

from dart_jax.data.records import find_files, fingerprint
from dart_jax.errors import UserError
from dart_jax.generation import default_tree
from dart_jax.model import DEMO, DartModel
from dart_jax.programs.command_line import RESUMABLE, parse, program
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import environment
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_drafter, read_target_config, save_drafter
from dart_jax.weights.gguf.tensors import gguf_files
from dart_jax.weights.user_cache import load_ngram
from train.data.encoding import parse_template_kwargs
from train.data.packed_dataset import PackedDataset
from train.data.prepare import prepare
from train.drafter import DrafterTraining, train
from train.evaluation.evaluator import (
    DrafterEvaluator,
    benchmark_prompts,
    question_prompts,
    step_seconds,
)
from train.experiments import report
from train.experiments.plans import PLANS, Name, Plan
from train.objective.draft_ids import with_draft_ids
from train.run import config_file, work_directory
from train.run.checkpoints import whole_steps
from train.run.config import FREE

_TIMED_PROMPTS = 4


@dataclasses.dataclass(frozen=True)
class AblateConfig:
    """The experiment and its options."""

    experiment: Annotated[Name, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")]
    """gamma: the weight of later positions; loss; shift: whether the last real row predicts;
    layers; horizon: positions; pairs: rank of the pair scores; ngram: its weight in the search;
    vocabulary: tokens that can be drafted."""
    values: tuple[str, ...] = ()
    """Values to compare instead of the experiment's own."""
    recipe: Path = Path(__file__).parent / "ablate.toml"
    """Recipe of every run, as for `train.drafter --config`."""
    steps: int | None = None
    """Training steps, overriding the recipe's."""
    seeds: int = 3
    """Runs per variant; the seed sets the initial parameters and the order of the data."""
    work: Path = Path("build/ablate")
    """Directory of runs, prepared data and raw figures, for all experiments."""
    out: Path = Path("docs")
    """Directory to write the report to."""
    drafter: Path | None = None
    """Directory of a trained drafter for the experiments ngram and vocabulary, instead of training
    some."""
    ngram: str | None = str(DEMO / "ngram.dng")
    """N-gram file for the tree search."""
    questions: tuple[str, ...] = ()
    """Files of chats or instructions whose first questions are decoded, instead of functions of the
    demo benchmark; they must not be among the data."""
    prompts: int = 8
    """Prompts from each of those files, or from each of the demo benchmark's four groups."""
    max_new_tokens: int = 128
    """Tokens decoded per prompt."""
    tree_nodes: int | None = None
    """Nodes of the draft trees; the root not counted; by default few on a CPU and the
    reference's 60 elsewhere."""
    repeats: int = 5
    """Repeats of every time measurement."""

    def __post_init__(self) -> None:
        for name in ("seeds", "prompts", "repeats", "tree_nodes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if self.max_new_tokens < 2:
            raise UserError("--max-new-tokens must be at least 2")
        if self.drafter is not None and self.plan.trains:
            raise UserError("--drafter is for the experiments ngram and vocabulary; leave it out")
        if self.experiment == "ngram" and self.ngram is None:
            raise UserError("the experiment ngram needs an --ngram model")

    @property
    def plan(self) -> Plan:
        """The experiment, with the chosen values.

        Raises:
          UserError: they are not distinct values of the experiment's kind.
        """
        plan = PLANS[self.experiment]
        if not self.values:
            return plan
        kind = type(plan.values[0])
        if kind not in (int, float):
            raise UserError(f"the experiment {self.experiment} compares no numbers; omit --values")
        try:
            values = tuple(map(kind, self.values))
        except ValueError:
            values = ()
        if len(set(values)) != len(self.values) or not np.isfinite(values).all():
            raise UserError(f"--values {' '.join(self.values)} must be distinct numbers")
        if self.experiment == "vocabulary" and min(values) < 1:
            raise UserError("--values of the experiment vocabulary must be at least 1")
        names = [plan.name(value) for value in values]
        return dataclasses.replace(
            plan, values=values, base=plan.base if plan.base in names else names[0]
        )


def run(config: AblateConfig, command: str) -> Path:
    """Trains the missing drafters, evaluates all of them, and writes the report.

    Args:
      config: the experiment.
      command: the command line to show in the report.

    Returns:
      The report's file.

    Raises:
      UserError: an input cannot be used or an output cannot be written; finished runs stay.
    """
    raw, document = config.work / f"{config.experiment}.json", config.out / "ablations.md"
    plan, recipe = config.plan, recipe_of(config)
    for value in plan.values:
        config_file.replace(recipe, {plan.option: value})  # raises for values out of range
    check_outputs(raw, document)
    with work_directory.locked(config.work):
        directory = hub.resolve(recipe.target, patterns=hub.TARGET)
        tokenizer, target = Tokenizer.load(directory), read_target_config(directory)
        if config.questions:
            kwargs = parse_template_kwargs(recipe.data.chat_template_kwargs)
            files = find_files(config.questions)
            prompts = question_prompts(files, tokenizer, config.prompts, kwargs)
        else:
            prompts = benchmark_prompts(tokenizer, config.prompts)
        if config.ngram is not None:
            load_ngram(config.ngram, tokenizer, target.vocab_size)  # fail before hours of training
        drafters = {name: [config.drafter] for name in plan.variants if config.drafter}
        drafters = drafters or _train(config, plan, recipe)
        data = prepare(
            recipe.data,
            tokenizer,
            _cache(config),
            vocab_size=target.vocab_size,
            longest=target.max_length,
        )
        if plan.option == "vocabulary":
            drafters = _cut(config, drafters, data.training)
        evaluator = DrafterEvaluator(
            DartModel.from_pretrained(recipe.target, ngram=config.ngram, dtype=recipe.target_dtype),
            data.held_out,
            recipe.acceptance,
            prompts,
            config.max_new_tokens,
            config.tree_nodes,
            recipe.chunk,
        )
        figures = _evaluate(config, plan, evaluator, drafters)
    content = {
        "experiment": config.experiment,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "environment": environment(),
        "options": dataclasses.asdict(config),
        "recipe": dataclasses.asdict(recipe),
        "prompts": len(prompts),
        "figures": figures,
    }
    write_json(raw, content)
    report.write(document, plan, _setup(config, content), figures)
    return document


def recipe_of(config: AblateConfig) -> DrafterTraining:
    """Returns the settings that all runs share.

    Raises:
      UserError: the recipe cannot be read or is not one for experiments.
    """
    args = ["--config", str(config.recipe), "--out", str(config.work)]
    recipe = config_file.parse(DrafterTraining, args, None)
    if recipe.drafter.method != "dart":
        raise UserError(f"{config.recipe} trains a drafter other than DART's")
    for name, other in (("epochs", recipe.epochs), ("minutes", recipe.trainer.minutes)):
        if other is not None and config.steps is None:
            raise UserError(f"{config.recipe} has {name}; pass --steps instead")
    if not recipe.data.held_out:
        raise UserError(f"{config.recipe} holds no records out for evaluation; raise its held_out")
    changes: dict[str, Any] = {"teacher": "cached", "eval_prompts": 0, "ngram": None}
    if config.steps is not None:
        changes |= {"steps": config.steps, "minutes": None, "epochs": None}
    return config_file.replace(recipe, changes)


def training(
    config: AblateConfig, recipe: DrafterTraining, value: Any, seed: int
) -> DrafterTraining:
    """Returns the settings of a run; experiments share the runs that equal the recipe."""
    option = config.plan.option
    changed = config_file.replace(recipe, {option: value})
    name = f"{option}-{value}" if config.plan.trains and changed != recipe else "recipe"
    own = {"out": config.work / f"{name}_seed-{seed}", "cache": _cache(config), "seed": seed}
    return config_file.replace(changed if config.plan.trains else recipe, own)


def _cache(config: AblateConfig) -> Path:
    return config.work / "cache-recipe"


def _train(config: AblateConfig, plan: Plan, recipe: DrafterTraining) -> dict[str, list[Path]]:
    """Trains the drafters; returns each variant's directories, one per seed."""
    drafters: dict[str, list[Path]] = {name: [] for name in plan.variants}
    target = hub.resolve(recipe.target, patterns=hub.TARGET)
    total, number = len(drafters) * config.seeds, 0
    for name, value in plan.variants.items():
        for seed in range(config.seeds):
            number += 1
            run = training(config, recipe, value, seed)
            done = (run.out / "config.json").is_file()  # written last
            begun = done or whole_steps(run.out / "checkpoints")
            work_directory.check_settings(
                run.out,
                _settings(run, target),
                result="a run" if begun else "",
                cure=f"another --work, or delete {run.out}",
            )
            what = f"{plan.axis} {name}, seed {seed}" + (", already trained" if done else "")
            print(f"run {number} of {total}: {what}", flush=True)
            drafters[name].append(run.out / "drafter" if done else train(run))
            # Compiled programs accumulate memory mappings, which are limited (vm.max_map_count).
            jax.clear_caches()
    return drafters


def _settings(run: DrafterTraining, target: Path) -> dict[str, Any]:
    """Returns what a run depends on, by option name."""
    free = {f"--{name.replace('_', '-')}" for name in (*FREE, "out", "cache")}
    options = config_file.options(run) | {
        "--data": fingerprint(find_files(run.data.data)),
        "--target": work_directory.contents([*target.glob("*.safetensors"), *gguf_files(target)]),
    }
    settings = {name: value for name, value in options.items() if name not in free}
    return json.loads(json.dumps(settings, default=str))


def _cut(
    config: AblateConfig, drafters: dict[str, list[Path]], data: PackedDataset
) -> dict[str, list[Path]]:
    """Writes the drafters with only the most frequent tokens of the data; returns the new ones."""
    ranked = np.argsort(-data.token_counts(), kind="stable")
    smaller: dict[str, list[Path]] = {}
    for size, paths in drafters.items():
        for seed, path in enumerate(paths):
            drafter, params, ids = load_drafter(path)
            kept = np.flatnonzero(np.isin(ids, ranked[: int(size)]))
            drafter = dataclasses.replace(drafter, draft_vocab_size=len(kept))
            directory = config.work / f"vocabulary-{size}-seed-{seed}"
            save_drafter(directory, drafter, with_draft_ids(params, kept), ids[kept])
            smaller.setdefault(size, []).append(directory)
    return smaller


def _evaluate(
    config: AblateConfig,
    plan: Plan,
    evaluator: DrafterEvaluator,
    drafters: dict[str, list[Path]],
) -> dict[str, dict[str, list[float]]]:
    """Evaluates the drafters; returns each variant's figures, one value per seed."""
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in drafters}
    for name, value in plan.variants.items():
        weight = value if plan.option == "ngram_weight" else evaluator.acceptance.ngram_weight
        for path in drafters[name]:
            print(f"evaluating {plan.axis} {name}: {path.parent}", flush=True)
            own = evaluator.figures(path) | {"tau": evaluator.tau(path, weight)}
            for figure, measured in own.items():
                figures[name].setdefault(figure, []).append(measured)
    if plan.timed:
        few = evaluator.prompts[:: max(1, len(evaluator.prompts) // _TIMED_PROMPTS)]
        few, decoders = few[:_TIMED_PROMPTS], [evaluator.decoder(p) for p, *_ in drafters.values()]
        times = step_seconds(decoders, few, config.max_new_tokens, config.repeats)
        seconds = dict(zip(drafters, times, strict=True))
        for name, own in figures.items():
            own["step_seconds"] = seconds[name]
            pairs = zip(seconds[name], seconds[plan.base], strict=True)
            own["step_time"] = [ours / base for ours, base in pairs]
            own["tau_per_time"] = [tau / statistics.median(own["step_time"]) for tau in own["tau"]]
    return figures


def _setup(config: AblateConfig, content: dict[str, Any]) -> list[str]:
    """Returns the paragraphs that say what was run."""
    environment, trainer = content["environment"], content["recipe"]["trainer"]
    versions = ", ".join(f"{k} {v}" for k, v in environment.items() if k != "device")
    seeds = f"{config.seeds} seed{'s' * (config.seeds > 1)}"
    drafters = f"{trainer['steps']} steps of {trainer['batch_size']} rows, {seeds}"
    if config.drafter is not None:
        drafters = f"drafter `{config.drafter}`"
    nodes, search = default_tree()
    return [
        f"{content['date']}, {environment['device']}; {versions}. "
        f"Target `{content['recipe']['target']}`, {drafters}; {content['prompts']} prompts, "
        f"{config.max_new_tokens} new tokens each, trees of {config.tree_nodes or nodes} nodes "
        f"(level decay {search.level_decay:g}).",
        f"    {content['command']}",
    ]


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input ends with a one-line error and exit status 2."""
    args = sys.argv[1:] if args is None else args
    with program(RESUMABLE):
        config = parse(AblateConfig, args, __doc__)
        print(run(config, shlex.join(["python", "-m", "train.ablate", *args])))


if __name__ == "__main__":
    main()
