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

import pytest
import tiny_model
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.tokenizer import Tokenizer
from eval import speedup
from eval.prompts import demo_prompts
from eval.speedup import PROMPT_TOKENS, SpeedupConfig, run
from eval.tree_size import LEVEL_DECAYS
from train.corpus import HELD_OUT
from train.outputs import check_outputs

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
        run(config, Console(file=file, width=140))
        return file.getvalue(), json.loads(path.read_text())

    return measure


def row_of(text, name):
    """The cells of a table's row, the first of that name."""
    lines = (line.strip("│ ").split("│") for line in text.splitlines() if "│" in line)
    return next([c.strip() for c in cells] for cells in lines if cells[0].strip() == name)


def check_report(content, prompts, repeats):
    """What must hold whatever was measured."""
    assert list(content["groups"]) == [*HELD_OUT, "all"]
    for name, group in content["groups"].items():
        expected = prompts * len(HELD_OUT) if name == "all" else prompts
        assert group["prompts"] == group["identical"] == expected
        assert len(group["plain"]) == len(group["dart"]) == repeats
        assert min(*group["plain"], *group["dart"]) > 0
        ratios = [d / p for d, p in zip(group["dart"], group["plain"], strict=True)]
        assert group["speedup"] == pytest.approx(statistics.median(ratios))
        assert group["accepted"] == pytest.approx(group["tau"] - 1)
        assert group["tau"] >= 1
        assert set(group["shares"]) == STAGES[content["config"]["loop"]]
        assert sum(group["shares"].values()) == pytest.approx(1)
        assert min(group["shares"].values()) >= 0


def test_report(measured):
    text, content = measured()
    check_report(content, prompts=1, repeats=2)
    assert "T = 0, batch 1, 6 new tokens, tree of 4 nodes (level decay 0.7), n-gram" in text
    for name, group in content["groups"].items():
        first, plain, dart, *rest = row_of(text, name)
        assert first == name
        assert plain.startswith(f"{statistics.median(group['plain']):,.0f} ±")
        assert dart.startswith(f"{statistics.median(group['dart']):,.0f} ±")
        assert rest == [
            f"{group['speedup']:.2f}x",
            f"{group['tau']:.2f}",
            f"{group['accepted']:.2f}",
            f"{group['prompts']}/{group['prompts']}",
        ]
    assert content["tree"] == {"nodes": 4, "level_decay": 0.7}
    assert content["sweep"] == []
    assert {"device", "python", "jax", "dart-jax"} <= set(content["environment"])
    assert content["environment"]["device"] in text


@pytest.mark.parametrize("loop", ["fused", "host"])
def test_sampling_in_batches(measured, loop):
    """Three prompts in batches of two: one batch is not full."""
    settings = {"prompts": 3, "batch_size": 2, "repeats": 1}
    text, content = measured(loop=loop, temperature=1.0, top_k=40, top_p=0.9, **settings)
    check_report(content, prompts=3, repeats=1)
    assert "T = 1, batch 2, 6 new tokens, tree of 4 nodes" in text
    assert f"{loop} loop" in text


def test_without_ngram_model(measured, tmp_path):
    text, content = measured(no_ngram=True, ngram=tmp_path / "none", repeats=1)
    check_report(content, prompts=1, repeats=1)
    assert "no n-gram" in text


def test_sweep_choice_and_plot(measured, tmp_path, monkeypatch):
    sizes = (2, 5)
    for module in ("eval.speedup", "eval.tree_size"):
        monkeypatch.setattr(f"{module}.SIZES", sizes)
    plot = tmp_path / "new" / "plot.png"
    text, content = measured(tree_nodes="auto", sweep=True, plot=plot, repeats=1)
    check_report(content, prompts=1, repeats=1)
    chosen = content["tree"]
    choice = text.partition("Trees on warm-up prompts")[2].partition("T = 0")[0]
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


def test_a_plot_needs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'dart-jax\[plot\]'"):
        check_outputs(None, tmp_path / "plot.png")


def test_reports_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "report.json"):
        with pytest.raises(UserError, match="cannot write"):
            check_outputs(path, None)


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
