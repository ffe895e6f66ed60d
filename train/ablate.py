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
import functools
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dart_jax.data.records import Skipped, find_files, fingerprint, refuse
from dart_jax.errors import UserError
from dart_jax.generation import default_tree
from dart_jax.model import DartModel
from dart_jax.programs.command_line import RESUMABLE, parse, program
from dart_jax.programs.figures import save_figure
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import environment
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import read_target_config
from dart_jax.weights.gguf.tensors import gguf_files
from dart_jax.weights.user_cache import load_ngram
from train.data.packed_dataset import PackedDataset
from train.data.prepare import prepare
from train.drafter import DrafterTraining, train
from train.evaluation.evaluator import (
    DrafterEvaluator,
    benchmark_prompts,
    parameters,
    question_prompts,
    step_seconds,
)
from train.experiments import domains, report
from train.experiments.config import AblateConfig
from train.experiments.variants import Experiment, Variant
from train.experiments.vocabulary import cut
from train.run import config_file, work_directory
from train.run.checkpoints import whole_steps
from train.run.config import FREE

_TIMED_PROMPTS = 4

Figures = dict[str, dict[str, list[float]]]


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
    drawing = config.out / f"ablation_{config.experiment}.png"
    raw = config.work / f"{config.experiment}.json"
    check_outputs(raw, config.out / "ablations.md", drawing=drawing, option="--out")
    plan, recipe = config.plan(), _recipe(config)
    with work_directory.locked(config.work):
        directory = hub.resolve(recipe.target, patterns=hub.TARGET)
        tokenizer, target = Tokenizer.load(directory), read_target_config(directory)
        prompts = _prompts(config, tokenizer)
        if config.ngram is not None:
            load_ngram(config.ngram, tokenizer, target.vocab_size)  # fail before hours of training
        split = None
        if config.experiment == "domain":
            skipped = Skipped()
            split = domains.split(
                recipe.data.data,
                config.family,
                tokenizer.encode,
                config.work / f"domain-{config.family}",
                config.prompts * 4,
                skipped if recipe.data.skip_bad else refuse,
            )
            if skipped.count:
                print(f"{', '.join(recipe.data.data)}{skipped}", file=sys.stderr)
        if config.drafter is None:
            drafters = _train(config, plan, recipe, split)
        else:
            drafters = {name: [config.drafter] for name in plan.variants}
        one = _training(config, recipe, next(iter(plan.variants.values())), 0, split)
        data = prepare(
            one.data,
            tokenizer,
            one.cache or one.out,
            vocab_size=target.vocab_size,
            longest=target.max_length,
        )
        evaluator = DrafterEvaluator(
            DartModel.from_pretrained(recipe.target, ngram=config.ngram, dtype=recipe.target_dtype),
            data.held_out,
            recipe.acceptance,
            config.max_new_tokens,
            config.tree_nodes,
            recipe.chunk,
        )
        if config.experiment == "vocabulary":
            drafters = _cut(config, drafters, data.training)
        figures = _evaluate(config, plan, evaluator, drafters, prompts, split)
    nodes, search = default_tree()
    content = {
        "experiment": config.experiment,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "environment": environment(),
        "options": dataclasses.asdict(config),
        "recipe": dataclasses.asdict(recipe),
        "tree": {"nodes": config.tree_nodes or nodes, "level_decay": search.level_decay},
        "seeds": config.seeds,
        "prompts": len(prompts if split is None else split.inside + split.outside),
        "figures": figures,
        "paper": plan.paper,
        "compared": report.compare(plan, figures),
    }
    write_json(raw, content)
    save_figure(report.draw(plan, figures), drawing)
    document = config.out / "ablations.md"
    report.write(document, plan, content, drawing.name)
    return document


def _prompts(config: AblateConfig, tokenizer: Tokenizer) -> list[np.ndarray]:
    if config.questions:
        return question_prompts(find_files(config.questions), tokenizer, config.prompts)
    return benchmark_prompts(tokenizer, config.prompts)


def _recipe(config: AblateConfig) -> DrafterTraining:
    """Returns the settings that all runs share."""
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
    changes |= {"batch_size": config.batch_size} if config.batch_size is not None else {}
    return config_file.replace(recipe, changes)


def _train(
    config: AblateConfig, plan: Experiment, recipe: DrafterTraining, split: domains.Domains | None
) -> dict[str, list[Path]]:
    """Trains the drafters; returns each variant's directories, one per seed."""
    drafters: dict[str, list[Path]] = {name: [] for name in plan.variants}
    total, number = len(drafters) * config.seeds, 0
    for name, variant in plan.variants.items():
        for seed in range(config.seeds):
            number += 1
            start = None if variant.start is None else drafters[variant.start][seed]
            training = _training(config, recipe, variant, seed, split, start)
            target = hub.resolve(recipe.target, patterns=hub.TARGET)
            done = (training.out / "config.json").is_file()  # written last
            begun = done or whole_steps(training.out / "checkpoints")
            work_directory.check_settings(
                training.out,
                _settings(training, target),
                result="a run" if begun else "",
                cure=f"another --work, or delete {training.out}",
            )
            what = f"{plan.axis} {name}, seed {seed}" + (", already trained" if done else "")
            print(f"run {number} of {total}: {what}", flush=True)
            drafters[name].append(training.out / "drafter" if done else train(training))
            # Compiled programs accumulate memory mappings, which are limited (vm.max_map_count).
            jax.clear_caches()
    return drafters


def _settings(training: DrafterTraining, target: Path) -> dict[str, Any]:
    """Returns what a run depends on, by option name."""
    free = {f"--{name.replace('_', '-')}" for name in (*FREE, "out", "cache")}
    options = config_file.options(training) | {
        "--data": fingerprint(find_files(training.data.data)),
        "--target": work_directory.contents([*target.glob("*.safetensors"), *gguf_files(target)]),
    }
    settings = {name: value for name, value in options.items() if name not in free}
    return json.loads(json.dumps(settings, default=str))


def _cut(
    config: AblateConfig, drafters: dict[str, list[Path]], data: PackedDataset
) -> dict[str, list[Path]]:
    """Cuts the drafters to the sizes of the vocabularies; returns the new directories."""
    ranked = np.argsort(-data.token_counts(), kind="stable")
    return {
        str(size): [
            cut(path, ranked[:size], config.work / f"vocabulary-{size}-seed-{seed}")
            for seed, path in enumerate(drafters[str(size)])
        ]
        for size in config.vocabulary
    }


def _training(
    config: AblateConfig,
    recipe: DrafterTraining,
    variant: Variant,
    seed: int,
    split: domains.Domains | None,
    start: Path | None = None,
) -> DrafterTraining:
    """Returns the settings of a run; experiments share the runs that equal the recipe.

    Args:
      config: the experiment.
      recipe: the settings that all runs share.
      variant: what differs.
      seed: of this run.
      split: the data of the experiment domain.
      start: the drafter to start from, if it is a variant's.
    """
    tags, data = [], recipe.data.data
    if start is not None:
        recipe = config_file.replace(recipe, {"init": str(start), "draft_vocab": None})
    for option, value in variant.options.items():
        if config_file.replace(recipe, {option: value}) != recipe:
            tags.append(f"{option}-{value}")
    sets = variant.data
    if split is not None:
        sets = f"{config.family}-{variant.data}"
        data = (str(split.all if variant.data == "all" else split.without),)
        tags.append(sets)
    own = {
        "out": config.work / "_".join([*(tags or ["recipe"]), f"seed-{seed}"]),
        "cache": config.work / f"cache-{sets}",
        "seed": seed,
    }
    training = config_file.replace(recipe, own | dict(variant.options))
    return dataclasses.replace(training, data=dataclasses.replace(recipe.data, data=data))


def _evaluate(
    config: AblateConfig,
    plan: Experiment,
    evaluator: DrafterEvaluator,
    drafters: dict[str, list[Path]],
    prompts: list[np.ndarray],
    split: domains.Domains | None,
) -> Figures:
    """Evaluates the drafters; returns each variant's figures, one value per seed."""
    figures: Figures = {name: {} for name in drafters}
    # Variants may share drafters and differ only in the search.
    load = functools.lru_cache(maxsize=1)(evaluator.load)
    agreement = functools.cache(lambda path: evaluator.agreement(load(path)))
    tau = functools.cache(lambda path, weight: evaluator.tau(load(path), prompts, weight))
    for name, paths in drafters.items():
        for path in paths:
            print(f"evaluating {plan.axis} {name}: {path.parent}", flush=True)
            measured: dict[str, float] = {
                "parameters": parameters(load(path)),
                "coverage": evaluator.coverage(load(path)),
            }
            if split is None:
                measured |= agreement(path)
                measured["tau"] = tau(path, plan.variants[name].ngram_weight)
                measured["tau_without_ngram"] = tau(path, 0.0)
            else:
                measured["tau_inside"] = evaluator.tau(load(path), split.inside, 0.0)
                measured["tau_outside"] = evaluator.tau(load(path), split.outside, 0.0)
            for figure, value in measured.items():
                figures[name].setdefault(figure, []).append(value)
    if plan.timed:
        few = prompts[:: max(1, len(prompts) // _TIMED_PROMPTS)][:_TIMED_PROMPTS]
        decoders = [evaluator.decoder(load(paths[0]), few) for paths in drafters.values()]
        times = step_seconds(decoders, few, config.max_new_tokens, config.repeats)
        seconds = dict(zip(drafters, times, strict=True))
        for name, own in figures.items():
            own["step_seconds"] = seconds[name]
            pairs = zip(seconds[name], seconds[plan.base], strict=True)
            own["step_time"] = [ours / base for ours, base in pairs]
            own["tau_per_time"] = [tau / statistics.median(own["step_time"]) for tau in own["tau"]]
    return figures


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input ends with a one-line error and exit status 2."""
    args = sys.argv[1:] if args is None else args
    with program(RESUMABLE):
        config = parse(AblateConfig, args, __doc__)
        print(run(config, shlex.join(["python", "-m", "train.ablate", *args])))


if __name__ == "__main__":
    main()
