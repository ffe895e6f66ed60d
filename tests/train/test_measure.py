"""The cost of the objective, compared with its literal form."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from train.measure import Case, MeasureConfig, Measured, growth, run


@pytest.mark.long
def test_both_forms(tmp_path):
    config = MeasureConfig(
        context=(12,),
        positions=(3,),
        batch_size=2,
        hidden_size=64,
        intermediate_size=48,
        vocab_size=50,
        repeats=2,
        json=tmp_path / "cost.json",
        plot=tmp_path / "cost.png",
    )
    file = io.StringIO()
    [case] = run(config, Console(file=file, width=140))
    assert (case.context, case.positions) == (12, 3)
    assert case.efficient.loss == pytest.approx(case.literal.loss, rel=1e-5)
    for way in (case.efficient, case.literal):
        assert len(way.seconds) == 2
        assert min(way.seconds) > 0
    assert case.literal.memory > case.efficient.memory > 0
    raw = json.loads(config.json.read_text())
    assert raw["cases"][0]["literal"]["seconds"] == case.literal.seconds
    assert config.plot.read_bytes().startswith(b"\x89PNG")
    assert f"{case.literal.memory / case.efficient.memory:.1f}" in file.getvalue()

    # A program that needs too much memory is not run, but the table shows its memory.
    limit = case.literal.memory - 1
    less = dataclasses.replace(config, memory=str(limit), repeats=1)
    [bounded] = run(less, Console(file=file, width=140))
    assert bounded.literal == (case.literal.memory, [], None)
    assert bounded.efficient.loss == case.efficient.loss
    assert f"not run, as it needs more than --memory {limit}" in file.getvalue()

    # With --compile-only nothing is run.
    [compiled] = run(dataclasses.replace(config, compile_only=True), Console(file=file))
    assert compiled.efficient == (case.efficient.memory, [], None)
    assert compiled.literal is None
    assert json.loads(config.json.read_text())["cases"][0]["literal"] is None


def test_growth_with_the_positions():
    """Time is compared only if both were run."""
    cases = [
        Case(9, 2, Measured(100, [1.0, 2.0, 3.0], 0.5), Measured(100, [1.0], 0.5)),
        Case(9, 4, Measured(150, [6.0, 5.0, 9.0], 0.5), Measured(400, [], None)),
        Case(16, 2, Measured(100, [1.0], 0.5), Measured(100, [1.0], 0.5)),
    ]
    assert growth(cases) == [
        "T 9, d 2 -> 4: efficient 3.00 x time, 1.50 x memory; literal 4.00 x memory"
    ]
