"""eval.products: every shape and number of rows is timed, printed and written."""

import io
import json

import pytest
from rich.console import Console

from dart_jax.models.cpu import foreign, products
from eval.products import ProductsConfig, run


@pytest.mark.parametrize("available", [True, False])
def test_report(available, tmp_path, monkeypatch):
    if not available:
        monkeypatch.setattr(foreign, "available", lambda: False)
        monkeypatch.setattr(products, "available", lambda: False)
    config = ProductsConfig(
        rows=(1, 9),
        shape=("40x50", "1x1"),
        megabytes=1,
        repeats=2,
        json=tmp_path / "report.json",
    )
    monkeypatch.setattr("eval.products._MOST_WEIGHTS", 3)
    shown = io.StringIO()
    run(config, Console(file=shown, width=120))
    assert "40x50, 3 in turn" in shown.getvalue()
    report = json.loads(config.json.read_text())
    assert (report["instructions"] is not None) is foreign.available()
    measured = report["measurements"]
    assert [(each["shape"], each["rows"]) for each in measured] == [
        (shape, rows) for shape in config.shape for rows in config.rows
    ]
    for each in measured:
        for name in ("xla", "float32", "bfloat16", "int8", "reading"):
            assert len(each[name]) == config.repeats
            assert all(time > 0 for time in each[name])
