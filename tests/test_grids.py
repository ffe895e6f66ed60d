"""Choice of the tests that run every day and in CI, and of the cases of a grid."""

import re
from collections import Counter

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
import pytest

def test_short(): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.long(ci=True)
def test_of_ci(): pass

@pytest.mark.long(keep=2)
@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("column", "abc")
def test_grid(row, column): pass
"""
LONG = {"short": 1, "long": 1, "of_ci": 1, "grid": 5}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), {"short": 1, "grid": 2}),
        (("--long",), LONG),
        (("--share", "1"), LONG),
        (("--whole",), LONG | {"grid": 15}),
        (("test_marked.py::test_grid[b-3]", "test_marked.py::test_long"), {"grid": 1, "long": 1}),
    ],
)
def test_what_runs(options, expected, pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_marked=SOURCE)
    result = pytester.runpytest("-p", "grids", "--collect-only", *options)
    assert result.ret == 0
    printed = result.stdout.str()
    assert Counter(re.findall(r"<Function test_([a-z_]+)", printed)) == expected
    if "--long" in options:
        cases = re.findall(r"grid\[(.)-(.)\]", printed)
        assert {column for column, _ in cases} == set("abc")
        assert {row for _, row in cases} == set("01234")
