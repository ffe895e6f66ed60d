"""The main program: what it prints and writes, and how it ends on bad input."""

import dataclasses
import importlib.util
import io
import json
import os
import shutil
import statistics
import subprocess
import sys

import jax
import numpy as np
import pytest
import tiny_model
from rich.console import Console

from dart_jax.checkpoint import load_drafter, save_drafter
from dart_jax.errors import UserError
from dart_jax.loop import Generation
from dart_jax.pure import init_params
from dart_jax.tokenizer import Tokenizer
from eval import paper, speedup
from eval.benchmarks import PAPER
from eval.measure import Run, accepted, summarize
from eval.methods import METHODS
from eval.prompts import demo_prompts
from eval.speedup import PROMPT_TOKENS, SpeedupConfig, run
from eval.tree_size import LEVEL_DECAYS
from train.corpus import HELD_OUT
from train.outputs import check_outputs
from train.shape import DrafterShape

STAGES = {"fused": {"prefill", "device", "search"}}
STAGES["host"] = STAGES["fused"] | {"host"}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def measured(tiny, tmp_path_factory):
    """Runs the program once a case: what it printed, and its JSON."""

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
def all_methods(measured, tiny, tmp_path_factory):
    """Every method in one run; the draft model is the target itself."""
    directory = tmp_path_factory.mktemp("eagle3")
    config = DrafterShape(method="eagle3").config(tiny_model.SHAPES.target)
    save_drafter(directory, config, init_params(config, 2), np.arange(config.vocab_size))
    tables, plot = directory / "new" / "tables.md", directory / "new" / "plot.png"
    text, content = measured(
        method="all",
        eagle3=str(directory),
        draft_model=str(tiny.target),
        batch_size=(1, 2),
        prompts=2,
        repeats=1,
        markdown=tables,
        plot=plot,
    )
    return text, content, tables.read_text(), plot.read_bytes()


def row_of(text, name):
    """The cells of a table's row, the first of that name."""
    lines = (line.strip("│ ").split("│") for line in text.splitlines() if "│" in line)
    return next([c.strip() for c in cells] for cells in lines if cells[0].strip() == name)


def check_report(content, prompts, repeats, methods=("plain", "dart")):
    """What must hold whatever was measured."""
    for setting in content["settings"]:
        assert list(setting["groups"]) == [*HELD_OUT, "all"]
        assert list(setting["trees"]) == list(methods)
        for group, rows in setting["groups"].items():
            assert list(rows) == list(methods)
            expected = prompts * len(HELD_OUT) if group == "all" else prompts
            for name, row in rows.items():
                check_row(row, rows["plain"], name, expected, repeats)
                assert set(row["shares"]) == STAGES[loop_of(content, name)]


def loop_of(content, name):
    return "fused" if name == "plain" else content["config"]["loop"]


def check_row(row, plain, name, prompts, repeats):
    assert row["prompts"] == row["identical"] == prompts
    assert len(row["rates"]) == repeats
    assert min(row["rates"]) > 0
    ratios = [ours / theirs for ours, theirs in zip(row["rates"], plain["rates"], strict=True)]
    assert row["speedups"] == pytest.approx(ratios)
    assert row["speedup"] == pytest.approx(statistics.median(ratios))
    assert row["tau"] >= 1
    assert row["accepted"] == pytest.approx(row["tau"] - 1)
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert min(row["shares"].values()) >= 0
    if name == "plain":
        assert row["tau"] == row["tau_by_request"] == row["speedup"] == 1
        assert row["lengths"][1:] == []


def test_report(measured):
    text, content = measured()
    check_report(content, prompts=1, repeats=2)
    (setting,) = content["settings"]
    title = " ".join(text.split())
    assert "demo: T = 0, batch 1, 6 new tokens, n-gram model, fused loop" in title
    assert "(DART 4 nodes, level decay 0.7)" in title
    for group, rows in setting["groups"].items():
        lines = [line.split() for line in text.splitlines()]
        start = lines.index([group])
        plain, dart = (
            next(line for line in lines[start:] if line[:1] == [name]) for name in ("plain", "DART")
        )
        median = statistics.median(rows["plain"]["rates"])
        assert plain[1:3] == [f"{median:,.0f}", plain[2]]
        row = rows["dart"]
        assert dart[3:] == [
            f"{row['speedup']:.2f}x",
            f"{row['speedup_mean']:.2f}x",
            f"{row['tau']:.2f}",
            f"{row['tau_by_request']:.2f}",
            f"{row['accepted']:.2f}",
            f"{row['prompts']}/{row['prompts']}",
        ]
    assert setting["trees"]["dart"] == {"nodes": 4, "level_decay": 0.7}
    assert content["sweep"] == []
    assert {"device", "python", "jax", "dart-jax"} <= set(content["environment"])
    assert content["environment"]["device"] in text
    assert "revision" in content


@pytest.mark.timeout(900)
def test_all_methods_in_all_settings(all_methods):
    text, content, tables, plot = all_methods
    check_report(content, prompts=2, repeats=1, methods=tuple(METHODS))
    settings = content["settings"]
    keys = [(setting["temperature"], setting["batch_size"]) for setting in settings]
    assert keys == [(0, 1), (0, 2)]
    for setting in settings:
        assert {name: tree["nodes"] for name, tree in setting["trees"].items()} == {
            name: 4 * (name != "plain") for name in METHODS
        }
        # The target drafts for itself: five tokens a verification, and then none are left.
        assert setting["groups"]["all"]["sps"]["tau"] == 5
    assert "All settings: speed-up, tau" in text
    for temperature, batch in keys:
        assert f"T = {temperature:g}, batch {batch}" in tables
    assert tables.count("| draft model |") == 2
    assert plot.startswith(b"\x89PNG")


def test_what_is_missing_is_left_out_of_all_and_refused_by_name(measured, tiny):
    config = SpeedupConfig(
        target=str(tiny.target), drafter=str(tiny.drafter), ngram=str(tiny.ngram), method="all"
    )
    models, left_out = config.models(config.load())
    assert list(models) == ["plain", "dart", "dart_no_ngram", "pld", "ngram"]
    assert [reason.split()[0] for reason in left_out] == ["eagle3", "sps"]
    assert len({id(model.params["target"]) for model in models.values()}) == 1
    for name, part in (("eagle3", "--eagle3"), ("sps", "--draft-model")):
        with pytest.raises(UserError, match=part):
            measured(method=f"dart,{name}")
    with pytest.raises(UserError, match="no method 'medusa'; pass all, or some of plain, dart"):
        measured(method="medusa")


@pytest.mark.parametrize("loop", ["fused", "host"])
def test_sampling_in_batches(measured, loop):
    """Three prompts in batches of two: one batch is not full."""
    settings = {"prompts": 3, "batch_size": (2,), "repeats": 1}
    text, content = measured(loop=loop, temperature=(1.0,), top_k=40, top_p=0.9, **settings)
    check_report(content, prompts=3, repeats=1)
    assert "T = 1, batch 2, 6 new tokens" in " ".join(text.split())
    assert f"{loop} loop" in " ".join(text.split())


def test_without_ngram_model(measured):
    text, content = measured(ngram=None, repeats=1)
    check_report(content, prompts=1, repeats=1)
    assert "no n-gram" in text


def test_a_crippled_drafter_changes_speed_alone(measured, tiny, tmp_path):
    """One whose head is random noise is hardly ever right; what is written stays the same."""
    config, params, ids = load_drafter(tiny.drafter)
    noise = jax.random.normal(jax.random.key(0), params["lm_head"]["kernel"].shape)
    save_drafter(tmp_path, config, {**params, "lm_head": {"kernel": 100 * noise}}, ids)
    for temperature in (0.0, 1.0):
        settings = {"temperature": (temperature,), "repeats": 1, "max_new_tokens": 24}
        whole = measured(method="sps", draft_model=str(tiny.target), **settings)[1]
        crippled = measured(drafter=str(tmp_path), ngram=None, **settings)[1]
        check_report(whole, prompts=1, repeats=1, methods=("plain", "sps"))
        check_report(crippled, prompts=1, repeats=1)
        taus = [
            report["settings"][0]["groups"]["all"][name]["tau"]
            for report, name in ((whole, "sps"), (crippled, "dart"))
        ]
        assert taus[1] < 1.3 < taus[0]


def test_imposed_acceptance_is_reached(measured):
    for tau in (2.5, 3.6):
        content = measured(acceptance=tau, repeats=1, max_new_tokens=400, prompts=1)[1]
        row = content["settings"][0]["groups"]["all"]["dart"]
        assert row["tau"] == pytest.approx(tau, rel=0.01)
        assert sum(row["lengths"]) > 100
    with pytest.raises(UserError, match="lower --acceptance 6"):
        measured(acceptance=6)


def test_benchmarks(measured, tmp_path):
    """Both turns of a chat are asked; the answer to the first stands in the second."""
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
    with pytest.raises(UserError, match=r"no gsm8k_test\.jsonl in"):
        measured(bench="gsm8k", data_dir=tmp_path)


def test_sweep_choice_and_plot(measured, tmp_path, monkeypatch):
    sizes = (2, 5)
    monkeypatch.setattr("eval.speedup.SIZES", sizes)
    dart = dataclasses.replace(METHODS["dart"], sizes=sizes)
    monkeypatch.setitem(METHODS, "dart", dart)
    plot = tmp_path / "new" / "plot.png"
    text, content = measured(tree_nodes="auto", sweep=True, plot=plot, repeats=1)
    check_report(content, prompts=1, repeats=1)
    chosen = content["settings"][0]["trees"]["dart"]
    choice = text.partition("trees on warm-up prompts")[2].partition("T = 0")[0]
    rates = [
        float(cells[2].replace(",", ""))
        for line in choice.splitlines()
        if line.startswith("│") and (cells := line.strip("│").split("│"))
    ]
    assert len(rates) == len(sizes)
    assert rates == sorted(rates, reverse=True)
    assert row_of(choice, str(chosen["nodes"]))[2] == f"{rates[0]:,.0f}"
    decays = {row["level_decay"] for row in content["sweep"]}
    assert decays == {*LEVEL_DECAYS, chosen["level_decay"]}
    keys = ("nodes", "level_decay", "ngram", "loop")
    swept = [tuple(row[key] for key in keys) for row in content["sweep"]]
    assert len(set(swept)) == len(swept)
    assert {(size, 0.7, used, "fused") for size in sizes for used in (True, False)} <= set(swept)
    assert swept[-1] == (chosen["nodes"], chosen["level_decay"], True, "host")
    assert {(row["prompts"], row["identical"]) for row in content["sweep"]} == {(4, 4)}
    assert "Tree sizes, n-gram model and loops" in text
    assert plot.read_bytes().startswith(b"\x89PNG")


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
    assert accepted(np.array(drafted, bool)) == lengths


def test_summary():
    """Two prompts, by hand."""

    def generation(drafted, seconds):
        flags = np.array(drafted, bool)
        steps = np.array([len(accepted(flags))])
        return Generation([np.arange(len(flags))], [flags], steps, {"device": seconds})

    runs = [
        Run("a", {"plain": generation([0] * 5, 4.0), "dart": generation([0, 1, 1, 0, 0], 2.0)}),
        Run("b", {"plain": generation([0] * 3, 2.0), "dart": generation([0, 1, 0], 2.0)}),
    ]
    row = summarize([runs], "dart", "plain")
    assert row.rates == [2.0]
    assert row.speedup == 1.5
    assert row.speedup_mean == pytest.approx((2 + 1) / 2)
    assert row.tau == 2
    assert row.tau_by_request == pytest.approx((4 / 2 + 2 / 1) / 2)
    assert row.lengths == [1, 1, 1]
    assert row.acceptance == pytest.approx([2 / 3, 1 / 2])
    assert row.identical == 2


def test_the_papers_figures():
    theirs = paper.speedups("Qwen/Qwen3-4B")
    assert theirs["dart"]["humaneval"] == 3.25
    assert theirs["dart"]["mean"] == 2.87
    assert theirs["eagle3"]["tau"] == 3.54
    for name in ("Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B"):
        dart = paper.speedups(name)["dart"]
        assert statistics.mean(dart[b] for b in PAPER) == pytest.approx(dart["mean"], abs=0.03)
    assert paper.speedups("gpt2") == {}


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
def arguments(tiny, tmp_path_factory):
    """Command lines: name of the case -> arguments."""
    bad = tmp_path_factory.mktemp("bad")
    shutil.copytree(tiny.target, bad / "target")
    cut_off(bad / "target" / "model.safetensors")
    shutil.copy(tiny.ngram, bad / "ngram")
    cut_off(bad / "ngram")
    other = dataclasses.replace(tiny_model.SHAPES, hidden_size=128)
    tiny_model.write_drafter(bad / "drafter", other.drafter)
    model = {"--target": tiny.target, "--drafter": tiny.drafter, "--ngram": tiny.ngram}
    cases = {
        "missing directory": {"--target": bad / "nowhere"},
        "cut-off weights": {"--target": bad / "target"},
        "cut-off n-gram model": {"--ngram": bad / "ngram"},
        "drafter of another size": {"--drafter": bad / "drafter"},
        "long prompt": {"--max-length": 20, "--tree-nodes": 4},
        "temperature": {"--temperature": -1},
        "no prompts": {"--prompts": 0},
        "no nodes": {"--tree-nodes": 0},
        "cache": {"--max-length": 5000, "--tree-nodes": 4},
        "no benchmark": {"--bench": "squad"},
        "batch": {"--batch-size": 9},
        "acceptance": {"--acceptance": 0.5},
    }
    return {
        name: [str(part) for pair in {**model, **change}.items() for part in pair]
        for name, change in cases.items()
    }


CASES = {
    "missing directory": "nowhere",
    "cut-off weights": "model.safetensors",
    "cut-off n-gram model": "cannot read n-gram model",
    "drafter of another size": "the drafter does not fit the target",
    "long prompt": "do not fit into a cache of 20",
    "temperature": "temperature must be 0 or a positive number, got -1",
    "no prompts": "--prompts must be at least 1",
    "no nodes": "--tree-nodes must be at least 1",
    "cache": "beyond the target's 2048 positions",
    "no benchmark": "no benchmark or file 'squad'",
    "batch": "--batch-size 9 needs --prompts of at least as many",
    "acceptance": "--acceptance must be at least 1",
}


def check_error(status, stderr, message):
    assert status == 2
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert stderr.endswith("\n")
    assert message in stderr


@pytest.mark.parametrize("case", CASES)
def test_bad_input(arguments, case, capfd):
    with pytest.raises(SystemExit) as exit:
        speedup.main(arguments[case])
    check_error(exit.value.code, capfd.readouterr().err, CASES[case])


@pytest.mark.parametrize("case", ["missing directory", "long prompt"])
def test_bad_input_on_the_command_line(arguments, case):
    done = subprocess.run(
        [sys.executable, "-m", "eval.speedup", *arguments[case]],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    check_error(done.returncode, done.stderr, CASES[case])


def test_prompts_of_the_tiny_model(tiny):
    """What the tests above rely on: every group has enough prompts of different lengths."""
    tokenizer = Tokenizer.load(tiny.target)
    prompts = demo_prompts(tokenizer, 3, PROMPT_TOKENS)
    assert len(prompts) == 3 * len(HELD_OUT)
    assert len({len(prompt.tokens) for prompt in prompts}) > 3
