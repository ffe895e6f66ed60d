"""Choice of the tests that run every day and in CI, and of the cases of a grid."""

import re

import pytest

pytest_plugins = ["pytester"]

SOURCE = """
import pytest

def test_short(): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.long(ci=True)
def test_of_ci(): pass

@pytest.mark.parametrize("case", range(30))
def test_cheap(case): pass

@pytest.mark.long(keep=2)
@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("column", "abc")
def test_grid(row, column): pass

@pytest.mark.parametrize("case", [0, pytest.param(1, marks=pytest.mark.long)])
def test_one_is_long(case): pass
"""
EVERYDAY = {"short": 1, "cheap": 30, "grid": 2, "one_is_long": 1}
CI = {"short": 1, "long": 1, "of_ci": 1, "cheap": 30, "grid": 5, "one_is_long": 2}
WHOLE = CI | {"grid": 15}


@pytest.fixture
def collect(pytester):
    """A function from options and tests to the names that run, and what is printed."""
    pytester.makepyfile(test_marked=SOURCE)

    def collect(*options):
        result = pytester.runpytest("-p", "no:xdist", "-p", "grids", "--collect-only", *options)
        printed = result.stdout.str()
        assert result.ret == 0, printed + result.stderr.str()
        return re.findall(r"<Function test_(\S+)>", printed), printed

    return collect


def number(names):
    """Counts the cases of each test."""
    tests = [name.partition("[")[0] for name in names]
    return {test: tests.count(test) for test in dict.fromkeys(tests)}


def test_what_runs(collect):
    """Samples hold every value, and change with the seed."""
    for options, expected in (
        ((), EVERYDAY),
        (("--whole",), WHOLE),
        (("test_marked.py::test_grid", "test_marked.py::test_long"), {"grid": 15, "long": 1}),
        (("test_marked.py::test_grid[b-3]",), {"grid": 1}),
    ):
        assert number(collect(*options)[0]) == expected
    samples = {}
    for seed in ("one", "two"):
        names, printed = collect("--long", "--grid-seed", seed)
        assert f"--grid-seed {seed};" in printed
        assert number(names) == CI
        samples[seed] = [name for name in names if name.startswith("grid")]
        cases = re.findall(r"grid\[(.)-(.)\]", " ".join(names))
        assert {column for column, _ in cases} == set("abc")
        assert {row for _, row in cases} == set("01234")
        assert set(collect("--grid-seed", seed)[0]) < set(names)
    assert samples["one"] != samples["two"]
