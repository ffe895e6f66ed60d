"""eval.products: every shape and number of rows is timed, printed and written."""

import io
import json

import pytest
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.models import cpu
from eval.products import ProductsConfig, run


@pytest.mark.skipif(not cpu.available(), reason="XLA cannot call the C++ core")
def test_report(tmp_path, monkeypatch):
    monkeypatch.setattr("eval.products._MOST_WEIGHTS", 3)
    path, printed = tmp_path / "report.json", io.StringIO()
    config = ProductsConfig(rows=(1, 9), shape=("64x50", "1x1"), repeats=2, json=path)
    run(config, Console(file=printed, width=120))
    report = json.loads(path.read_text())
    assert report["products"].startswith("the C++ core")
    cases = [(each["shape"], each["rows"]) for each in report["measurements"]]
    assert cases == [(shape, rows) for shape in config.shape for rows in config.rows]
    for each in report["measurements"]:
        assert f"{each['shape']}: microseconds" in printed.getvalue()
        blocks = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"} if each["shape"] == "64x50" else set()
        assert each.keys() - {"shape", "rows"} == {"XLA", "float32", "bfloat16"} | blocks
        for name in each.keys() - {"shape", "rows"}:
            assert len(each[name]) == 2
            assert min(each[name]) > 0


def test_without_the_core(monkeypatch):
    monkeypatch.setattr("eval.products.available", lambda: False)
    with pytest.raises(UserError, match=r"need the C\+\+ core"):
        run(ProductsConfig(), Console())
