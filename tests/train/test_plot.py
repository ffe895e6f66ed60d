"""Plots of runs."""

import json

import pytest
from figure_checks import check_style
from toy_training import RECIPE, toy_fit

from dart_jax.errors import UserError
from train import plot


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run with the metrics of a drafter's evaluation."""
    directory = tmp_path_factory.mktemp("runs") / "first"
    figures = {"alpha_1": 0.5, "alpha_2": 0.25, "held_out_loss": 1.0, "tau": 2.0}
    toy_fit(directory, RECIPE, evaluate=lambda params: figures)
    return directory


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def test_curves_of_a_run(run, tmp_path):
    out = tmp_path / "new" / "curves.png"
    plot.main([str(run), "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    curves = plot.read_run(run)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert curves["loss"].steps == [*range(1, RECIPE.steps + 1)]
    assert curves["loss"].values == [record["loss"] for record in records]
    assert curves["tau"] == ([6, 12], [2.0, 2.0])
    figure = plot.draw([plot.Recorded("first", curves)])
    check_style(figure)
    agreement = figure.axes[1]
    assert [line.get_ydata()[0] for line in agreement.lines] == [0.5, 0.25]
    light, dark = (line.get_alpha() for line in agreement.lines)
    assert light < dark


def test_what_no_run_has_gets_no_panel(run):
    curves = plot.read_run(run)
    del curves["tau"]
    without = plot.draw([plot.Recorded("first", curves)])
    assert titles(without) == [
        "loss, nats",
        "agreement with the target",
        "learning rate",
        "gradient norm",
    ]
    both = plot.draw([plot.Recorded("a", curves), plot.Recorded("b", plot.read_run(run))])
    assert "tau" in titles(both)
    labels = both.axes[0].get_legend_handles_labels()[1]
    assert labels == ["a: loss", "a: held_out_loss", "b: loss", "b: held_out_loss"]


def test_names_tell_runs_apart(tmp_path):
    assert plot.names([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    same = [tmp_path / "x" / "a", tmp_path / "y" / "a"]
    assert plot.names(same) == [str(path) for path in same]


def test_a_line_that_is_being_written_is_left_out(run, tmp_path):
    content = (run / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(content + b'{"step": 13, "loss"')
    assert plot.read_run(tmp_path) == plot.read_run(run)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*metrics.jsonl: No such file"),
        ("", "fewer than two steps"),
        ('{"step": 1, "loss": 2.0}\n', "fewer than two steps"),
        ('{"step": 1, "loss": 2.0}\nnothing\n', "metrics.jsonl:2: not a record"),
        ('{"step": 1, "loss": "low"}\n', "metrics.jsonl:1: not a record"),
        ("[1]\n", "metrics.jsonl:1: not a record"),
    ],
)
def test_runs_that_cannot_be_drawn(tmp_path, content, message):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        plot.read_run(tmp_path)


def test_no_run_is_told_in_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        plot.main([])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: no runs; pass one or more run directories\n"
