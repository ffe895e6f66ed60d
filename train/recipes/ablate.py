"""Repeat three of the paper's experiments: train and evaluate drafters that differ in one option.

    python -m train.recipes.ablate gamma

Each drafter is a run of `train.drafter` below --work, with the recipe except for the compared
option; the runs share the prepared data and the target's features. Finished runs are reused, and an
interrupted run resumes. All drafters are then evaluated identically: agreement with the target on
held-out rows, and greedy decoding of held-out prompts. The report, a JSON file, is written to
--work. For a real model, with the answers of `train.recipes.smollm2`:

    python -m train.recipes.ablate gamma --ngram build/smollm2/ngram.dng \\
        --recipe train/recipes/ablate_smollm2.toml
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

from dart_jax.errors import UserError
from dart_jax.generation import default_tree
from dart_jax.model import DEMO, DartModel
from dart_jax.models.drafter_config import DartConfig
from dart_jax.programs.command_line import RESUMABLE, check_least, parse, program
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import report
from dart_jax.programs.tables import table
from train.data.prepare import prepare
from train.drafter import DrafterTraining, train
from train.evaluation.acceptance import AcceptanceLength, Agreement, held_out_prompts
from train.objective.predictions import Frozen, PackedForward
from train.run import config_file, work_directory


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A comparison of values of one option of `train.drafter`.

    Attributes:
      option: the compared option.
      values: its values, unless others are chosen.
      paper: the paper's figures, for Qwen3-4B, by figure and value.
      note: a note for the reader.
    """

    option: str
    values: tuple[float, ...]
    paper: Mapping[str, Mapping[float, float]]
    note: str = ""


EXPERIMENTS = {
    "gamma": Experiment(
        "gamma",
        (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        {"tau": {0.5: 3.59, 0.6: 3.63, 0.7: 3.57, 0.8: 3.54, 0.9: 3.52, 1.0: 3.48}},
    ),
    "shift": Experiment(
        "shifted",
        (True, False),
        {"alpha_1": {True: 0.711, False: 0.577}},
        "Both predict the same number of positions; the unshifted drafter needs one more mask row. "
        "After few steps the figures show how fast drafters learn, not where they end up.",
    ),
    "ngram": Experiment(
        "ngram_weight",
        (0.0, 0.25, 0.5, 1.0),
        {"tau": {0.0: 3.13, 0.5: 3.63}},
        "The paper's figures are for HumanEval.",
    ),
}


@dataclasses.dataclass(frozen=True)
class AblateConfig:
    """The experiment and its options."""

    experiment: Annotated[
        Literal["gamma", "shift", "ngram"],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="EXPERIMENT"),
    ]
    """gamma: the weight of later positions; shift: whether the last real row predicts; ngram: the
    n-gram model's weight in the search."""
    values: tuple[float, ...] = ()
    """Values to compare instead of the experiment's own; not for shift."""
    recipe: Path = Path(__file__).parent / "ablate.toml"
    """Recipe of every run, as for `train.drafter --config`."""
    steps: int | None = None
    """Training steps, overriding the recipe's."""
    seeds: int = 3
    """Runs per variant; the seed sets the initial parameters and the order of the data."""
    work: Path = Path("build/ablate")
    """Directory of runs, prepared data and reports, for all experiments."""
    ngram: str = str(DEMO / "ngram.dng")
    """N-gram file for the tree search."""
    prompts: int = 32
    """Held-out prompts to decode."""
    max_new_tokens: int = 128
    """Tokens decoded per prompt."""

    def __post_init__(self) -> None:
        check_least(self, seeds=1, prompts=1, max_new_tokens=2)
        if self.values and self.experiment == "shift":
            raise UserError("the experiment shift compares no numbers; leave --values out")


def run(config: AblateConfig, console: Console) -> Path:
    """Trains the missing drafters, evaluates all of them, prints their table, and writes the
    report.

    Returns:
      The report's file.

    Raises:
      UserError: an input cannot be used or an output cannot be written; finished runs stay.
    """
    plan, recipe = EXPERIMENTS[config.experiment], recipe_of(config)
    runs = {
        value: [training(config, recipe, value, seed) for seed in range(config.seeds)]
        for value in config.values or plan.values
    }
    path = config.work / f"{config.experiment}.json"
    check_outputs(path)
    figures: dict[float, dict[str, list[float]]] = {value: {} for value in runs}
    with work_directory.locked(config.work):
        total, number = config.seeds * len(runs), 0
        for value, own in runs.items():
            for seed, each in enumerate(own):
                number += 1
                print(f"run {number} of {total}: {plan.option} {value}, seed {seed}", flush=True)
                for name, figure in _figures(config, each, train(each)).items():
                    figures[value].setdefault(name, []).append(figure)
                # Compiled programs accumulate memory mappings, which are limited
                # (vm.max_map_count).
                jax.clear_caches()
    nodes, search = default_tree()
    title = (
        f"{recipe.target}: {recipe.trainer.updates} steps of {recipe.trainer.batch_size} "
        f"rows, {config.seeds} seed{'s' * (config.seeds > 1)}; up to {config.prompts} prompts, "
        f"{config.max_new_tokens} new tokens each, trees of {nodes} nodes "
        f"(level decay {search.level_decay:g})"
    )
    printed = figures_table(title, plan, figures)
    console.print(printed)
    by_value = {str(value): own for value, own in figures.items()}
    content = report(config, f"Ablation: {config.experiment}", [printed], figures=by_value)
    write_json(path, content)
    return path


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
    changes: dict[str, Any] = {
        "teacher": "cached",
        "eval_prompts": 0,
        "ngram": None,
        "cache": config.work / "cache-recipe",
    }
    if config.steps is not None:
        changes |= {"steps": config.steps, "minutes": None, "epochs": None}
    return config_file.replace(recipe, changes)


def training(
    config: AblateConfig, recipe: DrafterTraining, value: float, seed: int
) -> DrafterTraining:
    """Returns the settings of a run; experiments share the runs that equal the recipe.

    Raises:
      UserError: the value is out of range.
    """
    option = EXPERIMENTS[config.experiment].option
    changed = config_file.replace(recipe, {option: value})
    own = option != "ngram_weight" and changed != recipe
    name = f"{option}-{value}" if own else "recipe"
    return config_file.replace(changed, {"out": config.work / f"{name}_seed-{seed}", "seed": seed})


def _figures(config: AblateConfig, settings: DrafterTraining, drafter: Path) -> dict[str, float]:
    """Evaluates a trained drafter; returns its figures by name."""
    model = DartModel.from_pretrained(
        settings.target, drafter, config.ngram, dtype=settings.target_dtype
    )
    target, acceptance, params = model.target, settings.acceptance, model.params
    assert isinstance(model.drafter, DartConfig)
    assert settings.cache is not None
    data = prepare(
        settings.data,
        model.tokenizer,
        settings.cache,
        vocab_size=target.vocab_size,
        longest=target.max_length,
    ).held_out
    longest = min(data.context, target.max_length - config.max_new_tokens)
    prompts = held_out_prompts(data, config.prompts, longest)
    if not prompts:
        raise UserError(f"no held-out prompt of {config.recipe} can be decoded; raise its held_out")
    length = AcceptanceLength(model, prompts, config.max_new_tokens, acceptance.ngram_weight)
    forward = PackedForward(target, model.drafter, model.drafter.num_positions, settings.chunk)
    frozen = Frozen(params["target"], params["draft_ids"])
    agreement = Agreement(forward, frozen, data, acceptance.eval_rows)
    figures = length(params["drafter"]) | agreement(params["drafter"])
    return {name: value for name, value in figures.items() if name.startswith(("tau", "alpha"))}


def figures_table(
    title: str, plan: Experiment, figures: Mapping[float, Mapping[str, Sequence[float]]]
) -> Table:
    """Returns a table with one row per value, the paper's figures next to ours.

    Args:
      title: of the table.
      plan: what was compared.
      figures: each value's figures by name, with one number per seed.
    """
    columns = {name: None for own in figures.values() for name in own}
    names = [plan.option]
    for name in columns:
        names += [name, *["paper"] * (name in plan.paper)]
    rows = []
    for value, own in figures.items():
        cells = [str(value)]
        for name in columns:
            numbers = own.get(name, ())
            mean = f"{statistics.fmean(numbers):.3f}" if numbers else "-"
            cells.append(f"{mean} ± {statistics.stdev(numbers):.3f}" if len(numbers) > 1 else mean)
            if name in plan.paper:
                cells.append(str(plan.paper[name].get(value, "-")))
        rows.append(cells)
    return table(title, names, rows, plan.note)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input ends with a one-line error and exit status 2."""
    with program(RESUMABLE):
        print(run(parse(AblateConfig, args, __doc__), Console()))


if __name__ == "__main__":
    main()
