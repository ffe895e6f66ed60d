"""eval.speedup: output, reports and errors on bad input."""

import dataclasses
import io
import json
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
import tiny_model
from rich.console import Console

from dart_jax.data.stdlib import HELD_OUT
from dart_jax.engine.request import Output
from dart_jax.errors import UserError
from dart_jax.models.networks.pure import init_params
from dart_jax.weights.checkpoint import save_drafter
from eval.methods.decoding import Generation
from eval.methods.measure import Run, accepted_lengths, ratio_error, repeated_grams, summarize
from eval.methods.registry import METHODS, models_of
from eval.speedup.config import SpeedupConfig
from eval.speedup.program import Speedup, run
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
        run(config, Console(file=file, width=200))
        return file.getvalue(), json.loads(path.read_text())

    return measure


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A benchmark of one short prompt: little to compile."""
    path = tmp_path_factory.mktemp("bench") / "short.jsonl"
    path.write_text(json.dumps({"prompt": "def f(x):"}) + "\n")
    return str(path)


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


def check_row(row, plain, name, prompts, repeats):
    assert row["prompts"] == row["identical"] == prompts
    assert len(row["rates"]) == repeats
    assert min(row["rates"]) > 0
    ratios = [ours / theirs for ours, theirs in zip(row["rates"], plain["rates"], strict=True)]
    assert row["speedups"] == pytest.approx(ratios)
    assert row["tau"] >= 1
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert (row["nodes"] > 0) == (name != "plain")
    if name == "plain":
        assert row["tau"] == row["speedup"] == 1
        assert row["lengths"][1:] == []


def cells_of(text):
    """The rows of Markdown tables."""
    rows = (line.split("|")[1:-1] for line in text.splitlines() if "|" in line)
    return [[cell.strip() for cell in row] for row in rows]


def test_report(measured):
    text, content = measured(context=(200,))
    check_report(content, prompts=1, repeats=2)
    (setting,) = content["settings"]
    assert setting["context"] == 200
    assert all(196 < length <= 200 for length in setting["prompt_tokens"])
    title = " ".join(text.split())
    assert re.search(
        r"demo: T = 0, batch 1, prompts of (19\d to )?\d+ tokens, 6 new tokens, n-gram", title
    )
    assert "model (DART 4 nodes, level decay" in title
    lines = cells_of(text)
    for group, rows in setting["groups"].items():
        start = lines.index([group, "", "", "", "", ""])
        plain, dart = lines[start + 1 : start + 3]
        assert [plain[0], dart[0]] == ["plain", "DART"]
        assert plain[1].startswith(f"{statistics.median(rows['plain']['rates']):,.0f} ±")
        row = rows["dart"]
        half = (max(row["speedups"]) - min(row["speedups"])) / 2
        same = f"{row['prompts']}/{row['prompts']}"
        speedup = f"{row['speedup']:.2f}x ±{half:.2f}"
        assert dart[2:3] + dart[4:] == [speedup, f"{row['tau']:.2f}", same]
        assert float(dart[3].split()[0]) == pytest.approx(
            1000 * statistics.median(row["token_seconds"]), abs=0.005
        )
    assert setting["trees"]["dart"] == {"nodes": 4, "level_decay": 0.7, "sizes": [], "chain": False}
    assert content["environment"]["cpu"] in text
    assert content["dtype"] == "float32"


def test_what_was_measured_outlasts_an_interruption(measured, short, tmp_path, monkeypatch):
    """One benchmark is shown once, and the figure has a panel for each setting."""
    settings = {"bench": short, "repeats": 1, "plot": tmp_path / "plot.svg"}
    text, content = measured(batch_size=(1,), temperature=(0, 1), **settings)
    assert [each["temperature"] for each in content["settings"]] == [0, 1]
    assert settings["plot"].read_text().count("<!-- Speed-up: T = ") == 2
    assert not {"all", "short"} & {row[0] for row in cells_of(text.partition("All settings")[0])}
    real, path = Speedup.setting, tmp_path / "report.json"

    def once(speedup, workload, sampling, size):
        if path.exists():
            raise KeyboardInterrupt
        return real(speedup, workload, sampling, size)

    monkeypatch.setattr(Speedup, "setting", once)
    with pytest.raises(KeyboardInterrupt):
        measured(temperature=(1, 0), json=path, **settings)
    (first,) = json.loads(path.read_text())["settings"]
    assert first["temperature"] == 1
    assert first["groups"]["all"]["dart"]["prompts"] == 1
    assert settings["plot"].read_text().count("<!-- Speed-up: T = ") == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_methods_in_all_settings(measured, tiny, tmp_path):
    """The draft model is the target itself."""
    config = DrafterShape(method="eagle3").config(tiny_model.SHAPES.target)
    save_drafter(tmp_path, config, init_params(config, 2), np.arange(config.vocab_size))
    parts = {"eagle3": str(tmp_path), "draft_model": str(tiny.target)}
    plot = tmp_path / "new" / "plot.png"
    sizes = {"batch_size": (1, 2), "prompts": 2, "repeats": 1}
    tables, content = measured(method="all", **parts, plot=plot, **sizes)
    missing = ("dart_pairs", "dflash", "dspark", "jetspec")  # of no drafter here
    methods = [name for name in METHODS if not name.startswith(missing)]
    check_report(content, prompts=2, repeats=1, methods=methods)
    for setting, size in zip(content["settings"], (1, 2), strict=True):
        assert (setting["temperature"], setting["batch_size"]) == (0, size)
        assert {name: tree["nodes"] for name, tree in setting["trees"].items()} == {
            name: 4 * (name != "plain") for name in methods
        }
    assert len(re.findall(r"\| method +\| prefill", tables)) == 2
    titles, _, *rows = cells_of(tables.partition("All settings: tau")[2])
    assert titles[4:] == [METHODS[name].title for name in methods]
    assert [row[2:4] for row in rows[:2]] == [["0", "1"], ["0", "2"]]
    tau = [f"{setting['groups']['all']['sps']['tau']:.2f}" for setting in content["settings"]]
    assert [row[titles.index("draft model")] for row in rows[:2]] == tau
    assert plot.read_bytes().startswith(b"\x89PNG")
    # The target drafts for itself: one verification emits all five remaining tokens.
    _, content = measured(method="sps", **parts, no_text_drafts=True, **sizes)
    assert [setting["groups"]["all"]["sps"]["tau"] for setting in content["settings"]] == [5, 5]


def test_methods_that_cannot_run_are_left_out_of_all(tiny):
    """For want of a part; or, with an imposed tau, of depth: DART's four positions and the bonus
    token make five."""
    parts = {"target": str(tiny.target), "drafter": str(tiny.drafter), "ngram": str(tiny.ngram)}
    config = SpeedupConfig(**parts, method="all")
    base = config.load()
    models, left_out = models_of(config, base)
    names = ["plain", "text", "dart", "dart_alone", "dart_no_ngram", "pld", "ngram"]
    assert list(models) == names
    assert [reason.split()[0] for reason in left_out] == ["DFlash,", "dart_pairs", "eagle3", "sps"]
    assert len({id(model.params["target"]) for model in models.values()}) == 1
    config = dataclasses.replace(config, acceptance=6, tree_nodes=8)
    models, left_out = models_of(config, base)
    assert list(models) == ["plain", "pld", "ngram"]
    assert [line for line in left_out if "depth" in line] == [
        f"{name} has trees of 8 nodes and depth 4, which emit at most 5 tokens per verification; "
        "lower --acceptance 6"
        for name in ("dart", "dart_alone", "dart_no_ngram")
    ]
    with pytest.raises(UserError, match=r"^no method is left: ngram has trees of 2 nodes"):
        models_of(dataclasses.replace(config, tree_nodes=2), base)


@pytest.mark.long
def test_an_imposed_acceptance_is_reached(measured, short, tiny, tmp_path):
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


@pytest.mark.long
def test_random_weights_in_a_shape(measured, short):
    """In the demo's shape, the smallest with a vocabulary large enough for its tokenizer."""
    none = {"target": None, "drafter": None, "ngram": None}
    shape = {"shape": "demo", "acceptance": 3, "tree_nodes": 4}
    text, content = measured(**none, **shape, bench=short, repeats=1, max_new_tokens=7)
    assert "short: random weights in the shape of demo, T = 0" in " ".join(text.split())
    rows = content["settings"][0]["groups"]["all"]
    assert (rows["dart"]["tau"], rows["dart"]["lengths"]) == (3, [0, 0, 2])
    with pytest.raises(UserError, match="--shape tiny has only 512 tokens, the demo's tokenizer"):
        SpeedupConfig(**shape | {"shape": "tiny"}).load()


@pytest.mark.long
def test_benchmarks(measured, tmp_path):
    """Both turns of a chat become prompts. Batches that mix categories have results over all
    prompts only; of `all`, benchmarks that are not found are left out."""
    questions = [{"turns": [f"Say {n}.", "Again."], "category": f"c{n % 2}"} for n in range(6)]
    (tmp_path / "mt_bench.jsonl").write_text("\n".join(map(json.dumps, questions)))
    mine = tmp_path / "mine.jsonl"
    mine.write_text("\n".join(json.dumps({"prompt": f"def f{n}(x):"}) for n in range(3)))
    settings = {"data_dir": tmp_path, "prompts": 3, "repeats": 1, "temperature": (1.0,)}
    text, content = measured(bench=f"all,{mine}", batch_size=(2, 3), **settings)
    assert "left out: gsm8k: no gsm8k_test.jsonl in" in " ".join(text.split())
    assert "mine: the last batch holds 1 prompts, not 2" in text
    every = [(each["bench"], list(each["groups"])) for each in content["settings"]]
    assert every[:2] == [("mt_bench", ["c0", "c1", "all"]), ("mt_bench", ["all"])]
    assert every[2:] == [("mine", ["mine", "all"])] * 2
    for setting in content["settings"]:
        rows = setting["groups"]["all"]
        count = 6 if setting["bench"] == "mt_bench" else 3
        check_row(rows["dart"], rows["plain"], "dart", count, 1)
    # Caches fit the benchmark's own prompts, whatever else is measured.
    lengths = [setting["max_length"] for setting in content["settings"]]
    assert lengths[0] == lengths[1] > lengths[2] == lengths[3]


@pytest.mark.parametrize(
    ("drafted", "lengths"),
    [([0], []), ([0, 0, 0], [0, 0]), ([0, 1, 1, 0, 0, 1, 0], [2, 0, 1]), ([0, 1, 0, 1, 1], [1, 2])],
)
def test_accepted_lengths(drafted, lengths):
    assert accepted_lengths(np.array(drafted, bool)) == lengths


def test_summary():
    """Two prompts, by hand."""

    def generation(drafted, seconds):
        flags = np.array(drafted, bool)
        spent = {"prefill": 0.5, "device": seconds - 0.5}
        return Generation([Output(np.arange(len(flags)), flags.astype(int), nodes=6)], spent)

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
    assert row.nodes == (6 + 6) / (2 + 1)
    assert row.token_seconds == [(1.5 + 1.5) / (4 + 2)]
    assert row.decoding_speedups == [(3.5 + 1.5) / (1.5 + 1.5)]


def test_repetitions():
    """13 8-grams, 4 of them distinct; 13 distinct ones; and none."""
    for text, grams in (([1, 2, 3, 4] * 5, (9, 13)), (range(20), (0, 13)), (range(7), (0, 0))):
        assert repeated_grams(np.array(text)) == grams


def test_the_standard_error_is_the_ratios():
    """Of equally long prompts it is the mean's; of others, the spread of resampled ratios."""
    taus = np.array([2, 4, 3, 7])
    expected = np.std(taus, ddof=1) / 2
    assert ratio_error(10 * taus, np.full(4, 10)) == pytest.approx(expected)
    assert ratio_error(np.array([12, 24, 36]), np.array([4, 8, 12])) == 0
    assert ratio_error(np.array([5, 0]), np.array([2, 0])) is None


def test_the_papers_setting():
    config = SpeedupConfig(paper=True)
    assert (config.tree_nodes, config.level_decay, config.no_coupling) == (60, 0.7, True)
    assert dataclasses.replace(config, seed=1) == SpeedupConfig(paper=True, seed=1)
    for other in ({"tree_nodes": 8}, {"level_decay": 2.5}):
        with pytest.raises(UserError, match="--paper chooses the trees"):
            SpeedupConfig(paper=True, **other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 5000}, "beyond the target's 2048 positions"),
        ({"batch_size": (5,)}, "--batch-size 5 needs as many prompts, and demo has 4"),
        ({"context": (64, 2043)}, "--context 2043 and 6 new tokens are beyond .* 2048 positions"),
        ({"shape": "demo", "acceptance": 3}, "--shape brings its own target and drafter"),
        ({"acceptance": 6}, "lower --acceptance 6"),
        ({"method": "dart,eagle3"}, "pass it as --eagle3"),
        ({"bench": "gsm8k", "data_dir": Path("/nowhere")}, r"no gsm8k_test\.jsonl in"),
    ],
)
def test_bad_input(measured, options, message):
    """`tests/programs/test_bad_input.py` has those that need no model."""
    with pytest.raises(UserError, match=message):
        measured(**options)
