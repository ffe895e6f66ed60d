"""Plots of runs."""

import json

import pytest
from figure_checks import check_style
from toy_training import RECIPE, toy_fit

from dart_jax.errors import UserError
from train import plot


def test_curves_of_a_run(tmp_path):
    run, out = tmp_path / "run", tmp_path / "new" / "curves.png"
    figures = {"alpha_1": 0.5, "alpha_2": 0.25, "tau": 2.0}
    toy_fit(run, RECIPE, evaluate=lambda params: figures)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "loss"')  # a line that is being written is left out
    plot.main([str(run), "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    curves = plot.read_run(run)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:-1]]
    steps = [*range(1, RECIPE.steps + 1)]
    assert curves["loss"] == (steps, [record["loss"] for record in records])
    assert curves["tau"] == ([6, 12], [2.0, 2.0])
    figure = plot.draw({"a": curves, "b": {"loss": curves["loss"]}})
    check_style(figure)
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert panels.keys() == {
        "loss, nats",  # what no run has gets no panel
        "agreement with the target",
        "tau",
        "learning rate",
        "gradient norm",
    }
    agreement = panels["agreement with the target"]
    assert [line.get_ydata()[0] for line in agreement.lines] == [0.5, 0.25]
    labels = panels["loss, nats"].get_legend_handles_labels()[1]
    assert labels == ["a: loss", "b: loss"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*metrics.jsonl: No such file"),
        ("", "fewer than two steps"),
        ('{"step": 1, "loss": 2.0}\n', "fewer than two steps"),
        ('{"step": 1, "loss": 2.0}\nnothing\n', "metrics.jsonl holds something else than"),
        ('{"step": 1, "loss": "low"}\n', "metrics.jsonl holds something else than"),
    ],
)
def test_runs_that_cannot_be_drawn(tmp_path, content, message):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        plot.read_run(tmp_path)
