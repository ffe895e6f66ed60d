"""The paper's experiments: what is trained, judged and told."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tiny_model

from dart_jax.errors import UserError
from dart_jax.tokenizer import Tokenizer
from train import ablation_report, config_file, domains, experiments, verdict
from train.ablate import AblateConfig, run
from train.corpus import function_prompts, module_files, read
from train.drafter import DrafterTraining


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


def write_answers(path, prompts):
    """As `train.regenerate` leaves them, with drawn tokens for answers."""
    rng = np.random.default_rng(0)
    rows = [
        {"tokens": [*map(int, prompt), *rng.integers(1, 300, 24).tolist()], "prompt_length": n}
        for prompt in prompts
        for n in [len(prompt)]
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def recipe(tiny, tmp_path):
    """A recipe of two steps."""
    answers = write_answers(
        tmp_path / "answers.jsonl", [tiny.prompts[i % 3][: 4 + i] for i in range(24)]
    )
    path = tmp_path / "recipe.toml"
    path.write_text(f"""
target = "{tiny.target}"
out = "unused"
[data]
data = ["{answers}"]
context = 64
held_out = 4
[drafter]
positions = 4
[trainer]
steps = 2
batch = 2
warmup = 0
[acceptance]
eval_rows = 2
""")
    return path


def test_an_experiment(tiny, recipe, tmp_path, capsys):
    """Trains, judges and tells; a second time only what is new is trained."""
    config = AblateConfig(
        "gamma",
        recipe=recipe,
        gammas=(0.6, 1.0),
        seeds=1,
        work=tmp_path / "work",
        out=tmp_path / "docs",
        ngram=str(tiny.ngram),
        prompts=1,
        new_tokens=6,
    )
    report = run(config, "the command")
    assert "run 2 of 2: gamma 1, seed 0\n" in capsys.readouterr().out
    assert (tmp_path / "docs" / "ablation_gamma.png").read_bytes().startswith(b"\x89PNG")
    assert "    the command\n" in report.read_text()
    raw = json.loads((config.work / "gamma.json").read_text())
    assert [*raw["figures"]] == ["0.6", "1"]
    assert raw["compared"][0]["half"] is None

    def weights():
        found = config.work.glob("*seed*/drafter/model.safetensors")
        return {path.parts[-3]: path for path in sorted(found)}

    before = {name: path.stat().st_mtime_ns for name, path in weights().items()}
    assert [*before] == ["gamma-1.0_seed-0", "recipe_seed-0"]
    assert run(dataclasses.replace(config, gammas=(0.6,), seeds=2), "the command") == report
    told = capsys.readouterr().out
    assert "run 1 of 2: gamma 0.6, seed 0, is there\n" in told
    assert "run 2 of 2: gamma 0.6, seed 1\n" in told
    after = weights()
    assert [*after] == [*before, "recipe_seed-1"]
    assert {name: after[name].stat().st_mtime_ns for name in before} == before
    assert len({path.read_bytes() for path in after.values()}) == 3  # seeds and gammas matter
    own = json.loads((config.work / "gamma.json").read_text())["figures"]["0.6"]
    assert own["tau"][0] == raw["figures"]["0.6"]["tau"][0] >= 1
    assert all(len(values) == 2 for values in own.values())
    assert f"| 0.6 | {np.mean(own['tau']):.3f} ± " in report.read_text()

    with pytest.raises(UserError, match="was begun with another trainer"):
        run(dataclasses.replace(config, steps=3), "the command")


SECTION = {
    "date": "2026-01-01",
    "command": "the command",
    "environment": {"device": "made up", "jax": "1"},
    "options": {"new_tokens": 8},
    "recipe": {"target": "some", "trainer": {"steps": 1, "batch": 2}},
    "tree": {"nodes": 8, "level_decay": 0.7},
    "seeds": 3,
    "prompts": 4,
}


def figures_of(tau):
    """A drafter's, one a seed."""
    return {"tau": tau, "tau_without_ngram": tau, "alpha_1": [0.5] * 3, "alpha_2": [0.25] * 3}


def test_sections_replace_their_own_kind(tmp_path):
    path = tmp_path / "ablations.md"
    clear = {"shifted": figures_of([3.0, 3.1, 3.2]), "unshifted": figures_of([2.0, 2.1, 2.2])}
    same = {"0.6": figures_of([3.0, 3.3, 3.2]), "1": figures_of([3.1, 3.2, 3.2])}
    plans = {"shift": experiments.shift(), "gamma": experiments.gamma((0.6, 1.0))}
    for name, figures in (("shift", clear), ("gamma", same), ("shift", clear)):
        plan = plans[name]
        compared = ablation_report.compare(plan, figures)
        content = {**SECTION, "figures": figures, "compared": compared}
        ablation_report.write(path, plan, content, "x.png")
    text = path.read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Ablations",
        "## Gamma",
        "## Shifted or not",
    ]
    assert "- tau, gamma 0.6 against 1: +0.000 ± 0.248; paper +0.150: within the spread\n" in text
    assert "- tau, drafter shifted against unshifted: +1.000 ± 0.000: more\n" in text
    assert (
        "- alpha_1, drafter shifted against unshifted: +0.000 ± 0.000; paper +0.134: within" in text
    )
    assert "| unshifted | 0.500 ± 0.000 | 0.577 | 2.100 ± 0.100 |" in text


@pytest.mark.parametrize(
    ("first", "paper", "told"),
    [
        ([1.0, 1.1, 1.2], 0.5, "agrees"),
        ([1.0, 1.1, 1.2], -0.5, "disagrees"),
        ([1.0, 1.1, 1.2], None, "more"),
        ([-1.0, -1.1, -1.2], None, "less"),
        ([-1.0, -1.1, -1.2], -0.1, "agrees"),
        ([0.1, -0.1, 0.2], 0.5, "within the spread"),
        ([0.0, 0.0, 0.0], 0.5, "within the spread"),
        # Of one sign, but not surely: the interval counts.
        ([0.1, 0.5, 0.9], 0.5, "within the spread"),
        ([5.0], 0.5, "one seed has no spread, so nothing is decided"),
    ],
)
def test_the_rule(first, paper, told):
    measured = verdict.difference(first, [0.0] * len(first))
    assert verdict.verdict(measured, paper) == told


def test_the_interval_of_a_difference():
    """Against one that was worked out by hand: mean 2, deviation 1, three seeds."""
    measured = verdict.difference([3.0, 5.0, 7.0], [2.0, 3.0, 4.0])
    assert measured == pytest.approx((2.0, 4.303 / math.sqrt(3)))


def test_a_family_is_left_out(tiny, tmp_path):
    tokenizer = Tokenizer.load(tiny.target)
    prompts = {
        name: [tokenizer.encode(text) for text in function_prompts(read(file))]
        for name in ("heapq", "shlex", "bisect")
        for file in module_files(name)
    }
    every = [prompt for some in prompts.values() for prompt in some] * 2
    answers = write_answers(tmp_path / "answers.jsonl", every)

    def split(family):
        return domains.split([str(answers)], family, tokenizer.encode, tmp_path / "sets", 3)

    made = split("heapq")

    def left(path):
        rows = map(json.loads, path.read_text().splitlines())
        return [tuple(row["tokens"][: row["prompt_length"]]) for row in rows]

    inside, outside = ({tuple(p.tolist()) for p in some} for some in (made.inside, made.outside))
    family = set(map(tuple, prompts["heapq"]))
    assert inside <= family
    assert not outside & family
    assert len(inside) == len(outside) == 3
    assert len(left(made.all)) == len(every) - 2 * 6
    assert left(made.without) == [prompt for prompt in left(made.all) if prompt not in family]
    assert not (inside | outside) & set(left(made.all))
    # Files that stay the same keep their time: it tells prepared data whether they are theirs.
    before = made.all.stat().st_mtime_ns
    assert split("heapq").all.stat().st_mtime_ns == before
    for nothing in ("colorsys", "no_such_module"):
        with pytest.raises(UserError, match=f"--family {nothing}: 0 of"):
            split(nothing)


def test_options_are_replaced_wherever_they_are(recipe):
    config = config_file.parse(DrafterTraining, ["--config", str(recipe)], None)
    changed = config_file.replace(config, {"gamma": 0.9, "seed": 7})
    assert (changed.objective.gamma, changed.trainer.seed) == (0.9, 7)
    assert config_file.replace(changed, {"gamma": 0.6, "seed": 0}) == config
