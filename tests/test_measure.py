"""The cost of the objective beside its literal form."""

import io
import json

import pytest
from rich.console import Console

from train.measure import MeasureConfig, run


def test_both_forms(tmp_path):
    config = MeasureConfig(
        contexts=(12, 16),
        positions=(3,),
        batch=2,
        hidden_size=64,
        intermediate_size=48,
        vocab_size=50,
        repeats=2,
        json=tmp_path / "cost.json",
        plot=tmp_path / "cost.png",
    )
    file = io.StringIO()
    cases = run(config, Console(file=file, width=140))
    assert [(case.context, case.positions) for case in cases] == [(12, 3), (16, 3)]
    for case in cases:
        assert case.efficient.loss == pytest.approx(case.literal.loss, rel=1e-5)
        for way in (case.efficient, case.literal):
            assert way.memory > 0
            assert len(way.seconds) == 2
            assert min(way.seconds) > 0
    assert cases[1].literal.memory > cases[0].literal.memory
    raw = json.loads(config.json.read_text())
    assert raw["cases"][0]["literal"]["seconds"] == cases[0].literal.seconds
    assert config.plot.read_bytes().startswith(b"\x89PNG")
    assert f"{cases[0].literal.memory / cases[0].efficient.memory:.1f}" in file.getvalue()


def test_what_needs_too_much_memory_is_not_run():
    """But the table tells how much it would need, and how memory grows with d."""
    config = MeasureConfig(
        contexts=(8,),
        positions=(1, 2),
        hidden_size=64,
        intermediate_size=48,
        vocab_size=50,
        repeats=1,
        memory=1.0,
    )
    file = io.StringIO()
    cases = run(config, Console(file=file, width=140))
    for case in cases:
        assert case.efficient.loss is case.literal.loss is None
        assert case.efficient.seconds == case.literal.seconds == []
        assert min(case.efficient.memory, case.literal.memory) > 1
    assert "not run, as it needs more than --memory 1 bytes" in file.getvalue()
    ratio = cases[1].literal.memory / cases[0].literal.memory
    assert f"literal {ratio:.2f} x memory" in file.getvalue()
