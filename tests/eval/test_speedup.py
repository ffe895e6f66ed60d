"""eval.speedup: output, reports and errors on bad input."""

import dataclasses
import importlib.util
import io
import json
import re
import shutil
import statistics

import jax
import numpy as np
import pytest
import tiny_model
from rich.console import Console

from dart_jax.data.stdlib import HELD_OUT
from dart_jax.engine.decoder import Generation
from dart_jax.errors import UserError
from dart_jax.models.platform.weights import untie
from dart_jax.models.pure import init_params
from dart_jax.programs.outputs import check_outputs
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights.checkpoint import load_target, save_drafter, save_target
from eval.benchmarks.prompts import PROMPT_TOKENS, demo_prompts
from eval.benchmarks.registry import PAPER
from eval.methods.measure import (
    Run,
    accepted_lengths,
    is_varied,
    ratio_error,
    repeated_grams,
    summarize,
)
from eval.methods.registry import METHODS
from eval.methods.tree_size import LEVEL_DECAYS, Tree, fastest
from eval.speedup import program as speedup
from eval.speedup.config import SpeedupConfig
from eval.speedup.program import run
from eval.speedup.tables import paper_cells
from train.objective.drafter_shape import DrafterShape

STAGES = {"prefill", "device", "search"}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def measured(tiny, tmp_path_factory):
    """Returns a function that runs the program and returns its output and JSON."""

    def measure(**settings):
        path = tmp_path_factory.mktemp("report") / "report.json"
        config = SpeedupConfig(
            **{
                "target": tiny.target,
                "drafter": tiny.drafter,
                "ngram": tiny.ngram,
                "max_new_tokens": 6,
                "prompts": 1,
                "tree_nodes": 4,
                "level_decay": 0.7,
                "repeats": 2,
                "json": path,
                **settings,
            }
        )
        file = io.StringIO()
        run(config, Console(file=file, width=100))
        return file.getvalue(), json.loads(path.read_text())

    return measure


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A benchmark of one short prompt: little to compile."""
    path = tmp_path_factory.mktemp("bench") / "short.jsonl"
    path.write_text(json.dumps({"prompt": "def f(x):"}) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def all_methods(measured, tiny, tmp_path_factory):
    """Every method in one run; the draft model is the target itself."""
    directory = tmp_path_factory.mktemp("eagle3")
    config = DrafterShape(method="eagle3").config(tiny_model.SHAPES.target)
    save_drafter(directory, config, init_params(config, 2), np.arange(config.vocab_size))
    tables, plot = directory / "new" / "tables.md", directory / "new" / "plot.png"
    _, content = measured(
        method="all",
        eagle3=str(directory),
        draft_model=str(tiny.target),
        batch_size=(1, 2),
        prompts=2,
        repeats=1,
        markdown=tables,
        plot=plot,
    )
    return content, tables.read_text(), plot.read_bytes()


def check_report(content, prompts, repeats, methods=("plain", "dart"), groups=tuple(HELD_OUT)):
    """Checks what holds whatever was measured."""
    for setting in content["settings"]:
        assert list(setting["groups"]) == [*groups, "all"]
        assert list(setting["trees"]) == list(methods)
        for group, rows in setting["groups"].items():
            assert list(rows) == list(methods)
            expected = prompts * len(HELD_OUT) if group == "all" else prompts
            for name, row in rows.items():
                check_row(row, rows["plain"], name, expected, repeats)
                assert set(row["shares"]) == STAGES
        rows = setting["groups"]["all"]
        assert setting["step_costs"] == {
            name: row["step_seconds"] / rows["plain"]["step_seconds"] for name, row in rows.items()
        }


def check_row(row, plain, name, prompts, repeats):
    assert row["prompts"] == row["identical"] == prompts
    assert len(row["rates"]) == repeats
    assert min(row["rates"]) > 0
    ratios = [ours / theirs for ours, theirs in zip(row["rates"], plain["rates"], strict=True)]
    assert row["speedups"] == pytest.approx(ratios)
    assert row["speedup"] == pytest.approx(statistics.median(ratios))
    assert row["tau"] >= 1
    assert 0 <= row["repeated"] <= 1
    assert row["varied"] == prompts  # the texts are too short to repeat anything
    assert row["tau_varied"] == row["tau"]
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert min(row["shares"].values()) >= 0
    if name == "plain":
        assert row["tau"] == row["speedup"] == 1
        assert row["lengths"][1:] == []


def test_report(measured):
    text, content = measured()
    check_report(content, prompts=1, repeats=2)
    (setting,) = content["settings"]
    title = " ".join(text.split())
    assert "demo: T = 0, batch 1, 6 new tokens, n-gram model (DART 4 nodes, level decay" in title
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    for group, rows in setting["groups"].items():
        start = lines.index([group, "", "", "", ""])
        plain, dart = lines[start + 1 : start + 3]
        assert [plain[0], dart[0]] == ["plain", "DART"]
        assert plain[1].startswith(f"{statistics.median(rows['plain']['rates']):,.0f} ±")
        row = rows["dart"]
        half = (max(row["speedups"]) - min(row["speedups"])) / 2
        same = f"{row['prompts']}/{row['prompts']}"
        assert dart[2:] == [f"{row['speedup']:.2f}x ±{half:.2f}", f"{row['tau']:.2f}", same]
    assert setting["trees"]["dart"] == {"nodes": 4, "level_decay": 0.7, "sizes": []}
    assert {"device", "python", "jax", "dart-jax"} <= set(content["environment"])
    assert content["environment"]["device"] in text
    assert {"revision", "date"} <= set(content)
    assert content["dtype"] == "float32"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_methods_in_all_settings(all_methods):
    content, tables, plot = all_methods
    methods = [name for name in METHODS if name != "dart_pairs"]  # the drafter has no pair scores
    check_report(content, prompts=2, repeats=1, methods=methods)
    settings = content["settings"]
    keys = [(setting["temperature"], setting["batch_size"]) for setting in settings]
    assert keys == [(0, 1), (0, 2)]
    for setting in settings:
        assert {name: tree["nodes"] for name, tree in setting["trees"].items()} == {
            name: 4 * (name != "plain") for name in methods
        }
        # The target drafts for itself: one verification emits all five remaining tokens.
        assert setting["groups"]["all"]["sps"]["tau"] == 5
    for second in ("prefill", "repeated"):
        assert len(re.findall(rf"\| method +\| {second}", tables)) == 2
    last = tables.partition("All settings: speed-up, tau")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in last.splitlines() if "|" in line]
    assert [row[:3] for row in rows[2:]] == [["demo", "0", "1"], ["demo", "0", "2"]]
    assert rows[0][3:] == [METHODS[name].title for name in methods if name != "plain"]
    for row, setting in zip(rows[2:], settings, strict=True):
        sps = setting["groups"]["all"]["sps"]
        assert row[rows[0].index("draft model")] == f"{sps['speedup']:.2f}x, 5.00"
    assert plot.startswith(b"\x89PNG")


def test_methods_with_missing_parts_are_left_out_of_all_and_refused_by_name(measured, tiny):
    config = SpeedupConfig(
        target=str(tiny.target), drafter=str(tiny.drafter), ngram=str(tiny.ngram), method="all"
    )
    models, left_out = config.models(config.load())
    assert list(models) == ["plain", "dart", "dart_no_ngram", "pld", "ngram"]
    assert [reason.split()[0] for reason in left_out] == ["dart_pairs", "eagle3", "sps"]
    assert len({id(model.params["target"]) for model in models.values()}) == 1
    for name, part in (("eagle3", "--eagle3"), ("sps", "--draft-model")):
        with pytest.raises(UserError, match=part):
            measured(method=f"dart,{name}")
    with pytest.raises(UserError, match="no method 'medusa'; pass all, or some of plain, dart"):
        measured(method="medusa")


@pytest.mark.long
def test_sampling_in_batches(measured):
    """Three prompts per group in batches of five: batches mix groups, so there are only results
    over all prompts, and the last batch is not full."""
    settings = {"prompts": 3, "batch_size": (5,), "repeats": 1}
    text, content = measured(temperature=(1.0,), top_k=40, top_p=0.9, **settings)
    check_report(content, prompts=3, repeats=1, groups=())
    assert "demo: the last batch holds 2 prompts, not 5" in text
    assert "T = 1, batch 5, 6 new tokens" in " ".join(text.split())


@pytest.mark.long
def test_without_ngram_model(measured):
    text, content = measured(ngram=None, repeats=1)
    check_report(content, prompts=1, repeats=1)
    assert "no n-gram" in text


@pytest.mark.long
def test_a_crippled_drafter_changes_only_speed(measured, short, tiny, tmp_path):
    """The target drafts for itself, and then with a head of noise, which is hardly ever right: it
    takes several times the steps, each as costly, and the output stays the same."""
    config, params = untie(*load_target(tiny.target))
    noise = 100 * jax.random.normal(jax.random.key(0), params["lm_head"]["kernel"].shape)
    save_target(tmp_path, config, {**params, "lm_head": {"kernel": noise}})
    shutil.copy(tiny.target / "tokenizer.json", tmp_path)
    settings = {"temperature": (0.0, 1.0), "repeats": 1, "max_new_tokens": 24, "bench": short}
    whole, crippled = (
        measured(method="sps", draft_model=str(model), **settings)[1]["settings"]
        for model in (tiny.target, tmp_path)
    )
    for at in range(2):
        good, bad = (setting[at]["groups"]["all"]["sps"] for setting in (whole, crippled))
        for row in (good, bad):  # as plain decoding, token for token
            assert row["identical"] == row["prompts"] == 1
        assert bad["tau"] < 1.3 < 3 < good["tau"]
        assert sum(bad["lengths"]) > 2 * sum(good["lengths"])


@pytest.mark.long
def test_imposed_acceptance_is_reached(measured):
    for tau in (2.5, 3.6):
        content = measured(acceptance=tau, repeats=1, max_new_tokens=400, prompts=1)[1]
        row = content["settings"][0]["groups"]["all"]["dart"]
        assert row["tau"] == pytest.approx(tau, rel=0.01)
        assert sum(row["lengths"]) > 100
    with pytest.raises(UserError, match="lower --acceptance 6"):
        measured(acceptance=6)


@pytest.mark.long
def test_nothing_ends_a_text_of_imposed_acceptance(measured, short, tiny, tmp_path):
    """The target would stop early: every third token is a stop token."""
    shutil.copytree(tiny.target, tmp_path, dirs_exist_ok=True)
    eos = {"eos_token_id": list(range(0, tiny_model.SHAPES.vocab_size, 3))}
    (tmp_path / "generation_config.json").write_text(json.dumps(eos))
    settings = {"target": tmp_path, "bench": short, "repeats": 1, "max_new_tokens": 101}
    settings["temperature"] = (1.0,)
    free = measured(**settings)[1]["settings"][0]["groups"]["all"]["dart"]
    assert sum(free["lengths"]) < 25
    row = measured(acceptance=2.5, **settings)[1]["settings"][0]["groups"]["all"]["dart"]
    assert row["tau"] == pytest.approx(2.5, rel=0.01)
    assert sum(row["lengths"]) == 40


def test_trees_too_shallow_for_the_acceptance_are_refused(tiny):
    """DART's four positions and the bonus token make five."""
    parts = {"target": str(tiny.target), "drafter": str(tiny.drafter), "ngram": str(tiny.ngram)}
    config = SpeedupConfig(**parts, method="all", acceptance=6, tree_nodes=8)
    models, left_out = config.models(config.load())
    assert list(models) == ["plain", "pld", "ngram"]
    assert [line for line in left_out if "depth" in line] == [
        f"{name} has trees of 8 nodes and depth 4, which emit at most 5 tokens per verification; "
        "lower --acceptance 6"
        for name in ("dart", "dart_no_ngram")
    ]
    with pytest.raises(UserError, match=r"^dart has trees of 8 nodes and depth 4, which emit"):
        dataclasses.replace(config, method="pld,dart").models(config.load())
    with pytest.raises(UserError, match=r"^no method is left: ngram has trees of 2 nodes"):
        dataclasses.replace(config, tree_nodes=2).models(config.load())


@pytest.mark.long
def test_random_weights_in_a_shape(measured, short):
    """In the demo's shape, the smallest with a vocabulary large enough for its tokenizer."""
    none = {"target": None, "drafter": None, "ngram": None}
    shape = {"shape": "demo", "acceptance": 3, "tree_nodes": 4}
    text, content = measured(**none, **shape, bench=short, repeats=1, max_new_tokens=7)
    words = " ".join(text.split())
    assert "short: random weights in the shape of demo, T = 0" in words
    assert "no n-gram model" in words
    rows = content["settings"][0]["groups"]["all"]
    assert (rows["dart"]["tau"], rows["dart"]["lengths"]) == (3, [0, 0, 2])
    config = SpeedupConfig(**shape, method="all")
    models, left_out = config.models(config.load())
    assert list(models) == ["plain", "dart", "pld"]
    missing = ["dart_pairs", "dart_no_ngram", "eagle3", "sps", "ngram"]
    assert [line.split()[0] for line in left_out] == missing
    with pytest.raises(
        UserError, match="--shape tiny has only 512 tokens, the demo's tokenizer 40"
    ):
        dataclasses.replace(config, shape="tiny").load()


@pytest.mark.long
def test_benchmarks(measured, tmp_path):
    """Both turns of a chat become prompts; the second contains the answer to the first."""
    questions = [{"turns": [f"Say {n}.", "Again."], "category": "c"} for n in range(6)]
    (tmp_path / "mt_bench.jsonl").write_text("\n".join(map(json.dumps, questions)))
    mine = tmp_path / "mine.jsonl"
    mine.write_text(json.dumps({"prompt": "def f(x):"}) + "\n")
    text, content = measured(bench=f"mt_bench,{mine}", data_dir=tmp_path, prompts=2, repeats=1)
    chats, own = content["settings"]
    assert [chats["bench"], own["bench"]] == ["mt_bench", "mine"]
    assert chats["groups"]["all"]["dart"]["prompts"] == 4
    assert own["groups"]["all"]["dart"]["prompts"] == 1
    assert list(chats["groups"]) == ["c", "all"]
    assert "MT-bench: T = 0" in text
    # Caches fit the benchmark's own prompts, whatever else is measured.
    alone = measured(bench=str(mine), prompts=2, repeats=1)[1]["settings"][0]
    assert alone["max_length"] == own["max_length"] < chats["max_length"]


def test_benchmarks_are_looked_for_before_the_model_loads(measured, tmp_path):
    with pytest.raises(UserError, match=r"no gsm8k_test\.jsonl in"):
        measured(bench="gsm8k", data_dir=tmp_path, target=tmp_path / "nowhere")


def test_a_target_for_chats_is_asked_questions_by_default(measured, tiny, tmp_path):
    target = shutil.copytree(tiny.target, tmp_path / "target")
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    (target / "chat_template.jinja").write_text(template)
    _, content = measured(target=target, prompts=2, repeats=1)
    [setting] = content["settings"]
    assert setting["bench"] == "questions"
    assert list(setting["groups"]) == ["code", "reasoning", "all"]


@pytest.mark.long
def test_all_benchmarks_are_those_found(measured, tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_text(json.dumps({"question": "Why?"}) + "\n")
    text, content = measured(bench="all", data_dir=tmp_path, repeats=1)
    assert [setting["bench"] for setting in content["settings"]] == ["gsm8k"]
    lines = " ".join(text.split())
    for name in (*PAPER, "spec_bench"):
        assert f"left out: {name}: no " in lines


@pytest.mark.long
def test_the_fastest_tree_is_chosen(measured, monkeypatch):
    monkeypatch.setitem(METHODS, "dart", dataclasses.replace(METHODS["dart"], sizes=(2, 5)))
    text, content = measured(tree_nodes="fastest", level_decay="auto", repeats=1)
    check_report(content, prompts=1, repeats=1)
    chosen = content["settings"][0]["trees"]["dart"]
    choice = text.partition("trees on warm-up prompts")[2].partition("T = 0")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in choice.splitlines()]
    trees = [(int(row[0]), float(row[1])) for row in rows if row and row[0].isdigit()]
    assert sorted(trees) == [(nodes, decay) for nodes in (2, 5) for decay in LEVEL_DECAYS]
    assert trees[0] == (chosen["nodes"], chosen["level_decay"])


@pytest.mark.parametrize(
    ("drafted", "lengths"),
    [
        ([0], []),
        ([0, 0, 0], [0, 0]),
        ([0, 1, 1, 0, 0, 1, 0], [2, 0, 1]),
        ([0, 1, 0, 1, 1], [1, 2]),
    ],
)
def test_accepted_lengths(drafted, lengths):
    assert accepted_lengths(np.array(drafted, bool)) == lengths


def test_summary():
    """Two prompts, by hand."""

    def generation(drafted, seconds):
        flags = np.array(drafted, bool)
        steps = np.array([len(accepted_lengths(flags))])
        spent = {"prefill": 0.5, "device": seconds - 0.5}
        return Generation([np.arange(len(flags))], [flags], steps, spent)

    runs = [
        Run("a", {"plain": generation([0] * 5, 4.0), "dart": generation([0, 1, 1, 0, 0], 2.0)}),
        Run("b", {"plain": generation([0] * 3, 2.0), "dart": generation([0, 1, 0], 2.0)}),
    ]
    row = summarize([runs], "dart", "plain")
    assert row.rates == [2.0]
    assert row.speedup == 1.5
    assert row.tau == 2
    assert row.lengths == [1, 1, 1]
    assert row.acceptance == pytest.approx([2 / 3, 1 / 2])
    assert row.identical == 2
    assert row.step_seconds == (1.5 + 1.5) / (2 + 1)


def test_repetitions():
    """A varied text and one that runs in circles, by hand."""
    circles = np.array([1, 2, 3, 4] * 5)  # 13 8-grams, 4 of them distinct
    assert repeated_grams(circles) == (9, 13)
    assert repeated_grams(np.arange(20)) == (0, 13)
    assert repeated_grams(np.arange(7)) == (0, 0)
    assert not is_varied(circles)
    assert is_varied(np.arange(20))
    assert is_varied(np.arange(7))

    def run(tokens, steps):
        flags = np.zeros(len(tokens), bool)
        spent = {"prefill": 0.5, "device": 1.0}
        one = Generation([tokens], [flags], np.array([steps]), spent)
        return Run("a", {"plain": one, "dart": one})

    row = summarize([[run(circles, 4), run(np.arange(20), 10)]], "dart", "plain")
    assert row.repeated == 9 / 26
    assert row.varied == 1
    assert row.tau_varied == 1.9
    assert row.tau == 38 / 14


def test_the_standard_error_is_the_ratios():
    """Of equally long prompts it is the mean's; of others, the spread of resampled ratios."""
    taus = np.array([2, 4, 3, 7])
    expected = np.std(taus, ddof=1) / 2
    assert ratio_error(10 * taus, np.full(4, 10)) == pytest.approx(expected)
    assert ratio_error(np.array([12, 24, 36]), np.array([4, 8, 12])) == 0
    assert ratio_error(np.array([5, 0]), np.array([2, 0])) is None
    rng = np.random.default_rng(0)
    steps = rng.integers(10, 40, 200)
    emitted = rng.binomial(6, 0.5, 200) * steps // 2 + steps
    picked = rng.integers(0, 200, (4000, 200))
    resampled = emitted[picked].sum(1) / steps[picked].sum(1)
    assert ratio_error(emitted, steps) == pytest.approx(resampled.std(), rel=0.1)


def test_trees_are_timed_in_turn(monkeypatch):
    """One call compiles; the median of three counts, so a single fast or slow one does not."""
    seconds = {Tree(2): [9.0, 1.0, 5.0, 3.0], Tree(3): [9.0, 2.0, 2.0, 2.0]}
    calls, now = [], [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def make(tree):
        def decode(*_):
            calls.append(tree)
            now[0] += seconds[tree].pop(0)

        return decode

    medians = fastest(make, list(seconds), [[np.arange(3)]], 6, seed=0)
    assert list(medians.items()) == [(Tree(3), 2.0), (Tree(2), 3.0)]
    assert calls == [Tree(2), Tree(3)] * 4


def test_the_papers_figures():
    theirs = paper_cells("Qwen/Qwen3-4B")
    assert theirs["HumanEval"] == {"dart": "3.25x"}
    assert theirs["mean of these"] == {"dart": "2.87x, 3.87", "eagle3": "2.12x, 3.54"}
    for name in ("Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B"):
        *each, mean = (float(cells["dart"].split("x")[0]) for cells in paper_cells(name).values())
        assert len(each) == len(PAPER)
        assert statistics.mean(each) == pytest.approx(mean, abs=0.03)
    assert paper_cells("gpt2") == {}


def test_the_papers_setting():
    config = SpeedupConfig(paper=True)
    assert (config.tree_nodes, config.level_decay, config.no_coupling) == (60, 0.7, True)
    assert dataclasses.replace(config, seed=1) == SpeedupConfig(paper=True, seed=1)
    for other in ({"tree_nodes": 8}, {"level_decay": 2.5}):
        with pytest.raises(UserError, match="--paper chooses the trees"):
            SpeedupConfig(paper=True, **other)


def test_a_plot_needs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'dart-jax\[plot\]'"):
        check_outputs(drawing=tmp_path / "plot.png")


def test_reports_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "report.json"):
        with pytest.raises(UserError, match="cannot write"):
            check_outputs(path)


def cut_off(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def bad(tiny, tmp_path_factory):
    """Parts of a model that cannot be used."""
    directory = tmp_path_factory.mktemp("bad")
    shutil.copytree(tiny.target, directory / "target")
    cut_off(directory / "target" / "model.safetensors")
    shutil.copy(tiny.ngram, directory / "ngram")
    cut_off(directory / "ngram")
    other = dataclasses.replace(tiny_model.SHAPES, hidden_size=128)
    tiny_model.write_drafter(directory / "drafter", other.drafter)
    return directory


# `tests/programs/test_bad_input.py` has those that need no model.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--target {bad}/nowhere", "nowhere"),
        ("--target {bad}/target", "model.safetensors"),
        ("--ngram {bad}/ngram", "cannot read n-gram model"),
        ("--drafter {bad}/drafter", "the drafter does not fit the target"),
        ("--max-new-tokens 5000", "beyond the target's 2048 positions"),
        ("--batch-size 5 --prompts 1", "--batch-size 5 needs as many prompts, and demo has 4"),
        ("--shape demo", "pass --acceptance"),
        ("--shape demo --acceptance 3", "--shape brings its own target and drafter"),
        ("--acceptance 0.5", "--acceptance must be at least 1"),
    ],
)
def test_bad_input(tiny, bad, options, message, capfd):
    words = options.format(bad=bad).split()
    model = {"--target": tiny.target, "--drafter": tiny.drafter, "--ngram": tiny.ngram}
    every = model | {"--tree-nodes": 4} | dict(zip(words[::2], words[1::2], strict=True))
    with pytest.raises(SystemExit) as exit:
        speedup.main([str(part) for pair in every.items() for part in pair])
    stderr = capfd.readouterr().err
    assert exit.value.code == 2
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert message in stderr


def test_prompts_of_the_tiny_model(tiny):
    """The tests above need enough prompts of different lengths in every group."""
    tokenizer = Tokenizer.load(tiny.target)
    prompts = demo_prompts(tokenizer, 3, PROMPT_TOKENS)
    assert len(prompts) == 3 * len(HELD_OUT)
    assert len({len(prompt.tokens) for prompt in prompts}) > 3
