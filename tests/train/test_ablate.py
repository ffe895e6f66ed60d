"""The paper's experiments: training, evaluation and report."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_model

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights.checkpoint import load_drafter
from train import ablate
from train.ablate import AblateConfig, run
from train.drafter import DrafterTraining
from train.evaluation.evaluator import question_prompts, step_seconds
from train.experiments import report as ablation_report
from train.experiments.plans import PLANS
from train.run import config_file


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


def write_answers(path, prompts):
    """Writes records as `train.regenerate` does, with random tokens as answers."""
    rng = np.random.default_rng(0)
    rows = [
        {"tokens": [*map(int, prompt), *rng.integers(1, 300, 24).tolist()], "prompt_length": n}
        for prompt in prompts
        for n in [len(prompt)]
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def write_recipe(path, tiny, answers):
    """A recipe of two steps."""
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
batch_size = 2
warmup = 0
[acceptance]
eval_rows = 2
""")
    return path


@pytest.fixture(scope="module")
def recipe(tiny, tmp_path_factory):
    directory = tmp_path_factory.mktemp("recipe")
    prompts = [tiny.prompts[i % 3][: 4 + i] for i in range(24)]
    answers = write_answers(directory / "answers.jsonl", prompts)
    return write_recipe(directory / "recipe.toml", tiny, answers)


@pytest.fixture(scope="module")
def config(tiny, recipe, tmp_path_factory):
    """The smallest experiment of each kind; all share one work directory."""
    directory = tmp_path_factory.mktemp("ablate")
    return AblateConfig(
        "gamma",
        recipe=recipe,
        values=("0.6", "1.0"),
        seeds=1,
        work=directory / "work",
        out=directory / "docs",
        ngram=str(tiny.ngram),
        prompts=1,
        max_new_tokens=6,
        repeats=2,
    )


def weights(config):
    """The trained drafters' weights, by run."""
    return {path.parts[-3]: path for path in config.work.glob("*/drafter/model.safetensors")}


def other(config, experiment, *values):
    """Another experiment in the same directories."""
    return dataclasses.replace(config, experiment=experiment, values=tuple(map(str, values)))


def raw_of(config, experiment):
    return json.loads((config.work / f"{experiment}.json").read_text())


@pytest.fixture(scope="module")
def gamma(config):
    """The report of a first experiment, and its raw figures."""
    report = run(config, "the command")
    return report, raw_of(config, "gamma")


@pytest.mark.long
def test_an_experiment(config, gamma, capsys):
    """Trains, evaluates and reports; a second run trains only what is new."""
    report, raw = gamma
    assert "    the command\n" in report.read_text()
    assert [*raw["figures"]] == ["0.6", "1"]

    before = {name: path.stat().st_mtime_ns for name, path in weights(config).items()}
    assert {"gamma-1.0_seed-0", "recipe_seed-0"} <= before.keys()
    assert run(dataclasses.replace(config, values=("0.6",), seeds=2), "the command") == report
    told = capsys.readouterr().out
    assert "run 1 of 2: gamma 0.6, seed 0, already trained\n" in told
    assert "run 2 of 2: gamma 0.6, seed 1\n" in told
    after = weights(config)
    assert after.keys() - before.keys() == {"recipe_seed-1"}
    assert {name: after[name].stat().st_mtime_ns for name in before} == before
    assert len({path.read_bytes() for path in after.values()}) == len(after)
    own = raw_of(config, "gamma")["figures"]["0.6"]
    assert own["tau"][0] == raw["figures"]["0.6"]["tau"][0] >= 1
    assert all(len(values) == 2 for values in own.values())
    assert f"| 0.6 | {np.mean(own['tau']):.3f} ± " in report.read_text()

    with pytest.raises(UserError, match=r"holds a run, made with another --steps \(2, now 3\)"):
        run(dataclasses.replace(config, steps=3), "the command")


@pytest.mark.long
def test_variants_that_share_their_drafters(config, gamma):
    """Only the search differs: nothing new is trained."""
    before = weights(config)
    report = run(other(config, "ngram", 0, 0.5), "the command")
    assert weights(config) == before
    figures = raw_of(config, "ngram")["figures"]
    recipe = gamma[1]["figures"]["0.6"]
    assert figures["0.5"] == recipe
    assert figures["0"] == {**recipe, "tau": recipe["tau_without_ngram"]}
    assert "\n## N-gram weight\n" in report.read_text()


@pytest.mark.long
def test_vocabularies(config, gamma):
    """The recipe's drafter is cut; nothing new is trained."""
    before = weights(config)
    experiment = other(config, "vocabulary", 300, 20)
    report = run(experiment, "the command")
    assert weights(config) == before
    every, few = raw_of(config, "vocabulary")["figures"].values()
    assert every == gamma[1]["figures"]["0.6"]
    assert every["coverage"] == [1.0]
    assert 0 < few["coverage"][0] < 1
    cut = config.work / "vocabulary-20-seed-0"
    ids = [load_drafter(path)[2] for path in (config.work / "recipe_seed-0/drafter", cut)]
    assert set(ids[1]) < set(ids[0])
    assert every["parameters"][0] > few["parameters"][0]
    assert "| tokens | coverage | tau | tau without n-gram |" in report.read_text()


@pytest.mark.long
def test_the_vocabulary_of_a_given_drafter(config, gamma):
    given = config.work / "recipe_seed-0/drafter"
    experiment = dataclasses.replace(other(config, "vocabulary", 300), drafter=given)
    run(experiment, "the command")
    assert raw_of(config, "vocabulary")["figures"]["300"] == gamma[1]["figures"]["0.6"]
    with pytest.raises(UserError, match="is for the experiments ngram and vocabulary"):
        dataclasses.replace(experiment, experiment="gamma")


@pytest.mark.long
def test_other_trees(config, gamma):
    """With a tree of one node a verification emits at most two tokens."""
    report = run(dataclasses.replace(other(config, "ngram", 0, 1), tree_nodes=1), "the command")
    assert "trees of 1 nodes" in report.read_text()
    figures = raw_of(config, "ngram")["figures"]
    assert all(1 <= tau <= 2 for own in figures.values() for tau in own["tau"])


@pytest.mark.long
def test_variants_that_cost_differently(config, gamma, monkeypatch):
    def measured(decoders, prompts, new_tokens, repeats):
        assert (len(decoders), len(prompts), new_tokens, repeats) == (2, 4, 6, 2)
        return [[0.5, 1.0], [1.0, 3.0]]

    monkeypatch.setattr(ablate, "step_seconds", measured)
    report = run(other(config, "layers", 1, 2), "the command")
    assert "layers-2_seed-0" in weights(config)
    one, two = raw_of(config, "layers")["figures"].values()
    recipe = gamma[1]["figures"]["0.6"]
    assert {name: one[name] for name in recipe} == recipe
    assert two["parameters"] > one["parameters"]
    assert (one["step_time"], two["step_time"]) == ([1.0, 1.0], [2.0, 3.0])
    assert two["step_seconds"] == [1.0, 3.0]
    assert two["tau_per_time"] == [two["tau"][0] / 2.5]
    assert "| layers | alpha_1 | alpha_2 | alpha_3 | alpha_4 |" in report.read_text()


@pytest.mark.parametrize("experiment", PLANS)
def test_the_runs_of_an_experiment(config, experiment):
    """Each differs from the recipe in one option, or the same drafters are compared."""
    plan = dataclasses.replace(config, experiment=experiment, values=()).plan
    recipe = ablate.recipe_of(config)
    config = dataclasses.replace(config, experiment=experiment, values=())
    runs = [ablate.training(config, recipe, value, 1) for value in plan.values]
    assert plan.base in plan.variants
    if plan.trains:
        assert [config_file.options(each)[OPTIONS[experiment]] for each in runs] == [*plan.values]
        assert len({each.out for each in runs}) == len(plan.values)
    else:
        assert {each.out.name for each in runs} == {"recipe_seed-1"}


OPTIONS = {
    "gamma": "--gamma",
    "loss": "--loss",
    "shift": "--shifted",
    "layers": "--layers",
    "horizon": "--positions",
    "pairs": "--pair-rank",
}


@pytest.mark.parametrize(
    ("experiment", "values", "message"),
    [
        ("gamma", ("2",), "--gamma must be above 0 and at most 1, got 2"),
        ("gamma", ("0.6", "0.60"), "--values 0.6 0.60 must be distinct numbers"),
        ("ngram", ("nan",), "--values nan must be distinct numbers"),
        ("ngram", ("-1",), "--ngram-weight must be a finite number of at least 0, got -1"),
        ("layers", ("1.5",), "--values 1.5 must be distinct numbers"),
        ("layers", ("0",), "--positions and --layers must be at least 1"),
        ("vocabulary", ("0",), "must be at least 1"),
        ("shift", ("1",), "the experiment shift compares no numbers; omit --values"),
    ],
)
def test_values_that_cannot_be_compared(config, tmp_path, experiment, values, message):
    config = dataclasses.replace(config, experiment=experiment, values=values, work=tmp_path / "w")
    with pytest.raises(UserError, match=message):
        run(config, "the command")
    assert not config.work.exists()


def test_questions_of_files(tiny, tmp_path):
    """The first ones of each file, without their answers."""
    tokenizer = Tokenizer.load(tiny.target)
    made = [{"prompt": text, "completion": " no"} for text in ("one two", "three", "four five")]
    written = [{"tokens": [5, 6, 7, 8], "prompt_length": 3}]
    for name, rows in (("made", made), ("written", written)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    prompts = question_prompts([tmp_path / "made", tmp_path / "written"], tokenizer, 2, {})
    expected = [tokenizer.encode("one two"), tokenizer.encode("three"), [5, 6, 7]]
    assert [prompt.tolist() for prompt in prompts] == expected
    assert {prompt.dtype for prompt in prompts} == {np.dtype(np.int32)}
    (tmp_path / "text").write_text('{"tokens": [1, 2], "prompt_length": 0}')
    with pytest.raises(UserError, match="text:1: there is no prompt in it to answer"):
        question_prompts([tmp_path / "text"], tokenizer, 2, {})
    assert not tokenizer.chat_template
    (tmp_path / "chat").write_text('{"messages": [{"role": "user", "content": "one"}]}')
    with pytest.raises(UserError, match="chat:1: no chat template"):
        question_prompts([tmp_path / "chat"], tokenizer, 2, {})


def test_questions_honour_the_options_of_the_template(tiny, tmp_path):
    tokenizer = Tokenizer.load(tiny.target)
    tokenizer.wrapped.chat_template = "{{ kind }}{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "chats").write_text('{"messages": [{"role": "user", "content": "how?"}]}')
    [prompt] = question_prompts([tmp_path / "chats"], tokenizer, 1, {"kind": "so "})
    assert tokenizer.decode(prompt) == "so how?"


def test_the_time_of_a_step():
    """Over all prompts, without prefill and without the pass that compiles."""
    order = []

    def decoder(name, *seconds):
        left = iter(seconds)

        def decode(prompts, new_tokens):
            order.append(name)
            spent = {"prefill": 50.0, "verify": next(left)}
            return SimpleNamespace(seconds=spent, steps=np.array([2]))

        return decode

    decoders = [decoder("a", 100, 100, 1, 3, 2, 4), decoder("b", 100, 100, 2, 2, 4, 4)]
    prompts = [np.array([1]), np.array([2])]
    assert step_seconds(decoders, prompts, 5, 2) == [[1.0, 1.5], [1.0, 2.0]]
    assert order == [*"baba", *"abab", *"baba"]


def figures_of(tau):
    """A drafter's figures, one per seed."""
    return {"tau": tau, "tau_without_ngram": tau, "alpha_1": [0.5] * 3, "alpha_2": [0.25] * 3}


def test_sections_replace_their_own_kind(tmp_path):
    path = tmp_path / "ablations.md"
    clear = {"shifted": figures_of([3.0, 3.1, 3.2]), "unshifted": figures_of([2.0, 2.1, 2.2])}
    same = {"0.6": figures_of([3.0, 3.3, 3.2]), "1": figures_of([3.1, 3.2, 3.2])}
    for name, figures in (("shift", clear), ("gamma", same), ("shift", clear)):
        ablation_report.write(path, PLANS[name], ["the setup"], figures)
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
        ([5.0], 0.5, "one seed has no spread, so there is no verdict"),
    ],
)
def test_the_rule(first, paper, told):
    measured = ablation_report.difference(first, [0.0] * len(first))
    assert ablation_report.verdict(*measured, paper) == told


def test_the_interval_of_a_difference():
    """Against a result computed by hand: mean 2, deviation 1, three seeds."""
    measured = ablation_report.difference([3.0, 5.0, 7.0], [2.0, 3.0, 4.0])
    assert measured == pytest.approx((2.0, 4.303 / 3**0.5))


def test_options_are_replaced_wherever_they_are(recipe):
    config = config_file.parse(DrafterTraining, ["--config", str(recipe)], None)
    changed = config_file.replace(config, {"gamma": 0.9, "seed": 7})
    assert (changed.objective.gamma, changed.trainer.seed) == (0.9, 7)
    assert config_file.replace(changed, {"gamma": 0.6, "seed": 0}) == config
