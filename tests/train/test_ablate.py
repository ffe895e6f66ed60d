"""The paper's experiments: training, evaluation and report."""

import dataclasses
import json

import numpy as np
import pytest
import tiny_model
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.tables import contents
from train.drafter import DrafterTraining
from train.recipes import ablate
from train.recipes.ablate import EXPERIMENTS, AblateConfig, recipe_of, run, training
from train.run import config_file


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def config(tiny, tmp_path_factory):
    """An experiment of two runs of two steps, on random answers."""
    directory, rng = tmp_path_factory.mktemp("ablate"), np.random.default_rng(0)
    prompts = [tiny.prompts[i % 3][: 4 + i] for i in range(24)]
    rows = [
        {"tokens": [*map(int, p), *rng.integers(1, 300, 24).tolist()], "prompt_length": len(p)}
        for p in prompts
    ]
    (directory / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (directory / "recipe.toml").write_text(f"""
target = "{tiny.target}"
out = "unused"
data = ["{directory}/answers.jsonl"]
context = 64
held_out = 4
positions = 4
steps = 2
batch_size = 2
warmup = 0
eval_rows = 2
""")
    return AblateConfig(
        "gamma",
        values=(0.6, 1.0),
        recipe=directory / "recipe.toml",
        seeds=2,
        work=directory / "work",
        ngram=str(tiny.ngram),
        prompts=1,
        max_new_tokens=6,
    )


def table(report):
    """The rows of a report's table, by variant."""
    [table] = json.loads(report.read_text())["tables"]
    names = table["columns"][1:]
    return {value: dict(zip(names, row, strict=True)) for value, *row in table["rows"]}


@pytest.mark.long
def test_experiments_share_their_runs(config):
    """A second run trains only what is new; where only the search differs, nothing is."""
    gamma = table(run(config, Console()))
    assert gamma.keys() == {"0.6", "1.0"}
    assert gamma["0.6"].keys() >= {"tau", "paper", "tau_without_ngram", "alpha_1", "alpha_4"}
    assert gamma["0.6"]["paper"] == "3.63"

    def weights():
        return {p: p.stat().st_mtime_ns for p in config.work.glob("*/checkpoints/2")}

    before = weights()
    assert {path.parts[-3] for path in before} == {
        *(f"recipe_seed-{seed}" for seed in range(2)),
        *(f"gamma-1.0_seed-{seed}" for seed in range(2)),
    }
    search = dataclasses.replace(config, experiment="ngram", values=(0.0, 0.5))
    weight = table(run(search, Console()))
    assert weights() == before
    assert weight["0.5"]["tau"] == gamma["0.6"]["tau"]
    assert weight["0.0"]["tau"] == gamma["0.6"]["tau_without_ngram"]
    with pytest.raises(UserError, match=r"made with another --steps \(2, now 3\)"):
        run(dataclasses.replace(config, steps=3), Console())


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_runs_of_an_experiment(config, experiment):
    """Each differs from the recipe in the compared option; the search takes no run of its own."""
    config = dataclasses.replace(config, experiment=experiment, values=())
    recipe, plan = recipe_of(config), EXPERIMENTS[experiment]
    runs = [training(config, recipe, value, 1) for value in plan.values]
    option = f"--{plan.option.replace('_', '-')}"
    assert [config_file.options(each)[option] for each in runs] == [*plan.values]
    assert len({each.out for each in runs}) == (1 if experiment == "ngram" else len(runs))
    assert {each.trainer.seed for each in runs} == {1}


@pytest.mark.parametrize(
    ("experiment", "values", "message"),
    [
        ("gamma", (2.0,), "--gamma must be above 0 and at most 1, got 2"),
        ("ngram", (float("nan"),), "--ngram-weight must be a finite number of at least 0, got nan"),
        ("shift", (1.0,), "the experiment shift compares no numbers; leave --values out"),
    ],
)
def test_values_that_cannot_be_compared(config, tmp_path, experiment, values, message):
    work = tmp_path / "w"
    with pytest.raises(UserError, match=message):
        run(dataclasses.replace(config, experiment=experiment, values=values, work=work), Console())
    assert not work.exists()


def test_the_table():
    figures = {0.6: {"tau": [3.0, 5.0]}, 0.65: {"tau": [2.0], "alpha_1": [0.5]}}
    table = contents(ablate.figures_table("", EXPERIMENTS["gamma"], figures))
    assert [table["columns"], *table["rows"]] == [
        ["gamma", "tau", "paper", "alpha_1"],
        ["0.6", "4.000 ± 1.414", "3.63", "-"],
        ["0.65", "2.000", "-", "0.500"],
    ]


def test_options_are_replaced_wherever_they_are(config):
    recipe = config_file.parse(DrafterTraining, ["--config", str(config.recipe)], None)
    changed = config_file.replace(recipe, {"gamma": 0.9, "seed": 7})
    assert (changed.objective.gamma, changed.trainer.seed) == (0.9, 7)
    assert config_file.replace(changed, {"gamma": 0.6, "seed": 0}) == recipe
