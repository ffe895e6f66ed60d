"""The choice of tests that a run takes: the long ones, and a sample of each grid of slow cases.

A pytest plugin, which `conftest.py` loads. Samples follow from the commit, so that another commit
tests other cases, and every worker and every repetition of a run the same.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long tests as well")
    parser.addoption(
        "--share",
        type=int,
        metavar="N",
        help="run about one of N long tests as well, as CI does: others with every commit; and "
        "all with ci=True",
    )
    parser.addoption("--whole", action="store_true", help="run all tests, and all cases of each")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "long(keep=0, ci=False): run only with --long, --share, --whole or by its name. Of a "
        "parametrised test, a sample of `keep` cases runs always, and with --long one in which "
        "every value of every argument occurs. With `ci`, every --share has the test.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this run does not take."""
    if config.option.whole:
        return
    grids: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("long") and not _is_named(item, config.args):
            grids[item.path, getattr(item, "originalname", item.name)].append(item)
    command = ["git", "-C", str(config.rootpath), "rev-parse", "HEAD"]
    seed = subprocess.run(command, capture_output=True, text=True).stdout
    share = config.option.share
    left: set[pytest.Item] = set()
    for (path, name), grid in grids.items():
        marked = {"keep": 0, "ci": False} | grid[0].get_closest_marker("long").kwargs
        shared = share and (marked["ci"] or _number(f"{seed} {path.name} {name}") % share == 0)
        size = None if config.option.long or shared else marked["keep"]
        left |= {*grid} - {*_sample(grid, seed, size)}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def _sample(grid: Sequence[pytest.Item], seed: str, size: int | None) -> list[pytest.Item]:
    """The cases of a parametrised test that one run takes: so many, or as many as it takes for
    every value of every argument to occur. Each is the one that brings the most values that no case
    before it has, and among equal ones the one that the seed chooses."""
    left = sorted(grid, key=lambda case: _number(f"{seed} {case.nodeid}"))
    missing = set().union(*map(_values, left))
    taken: list[pytest.Item] = []
    while left and (len(taken) < size if size is not None else missing or not taken):
        best = max(left, key=lambda case: len(_values(case) & missing))
        left.remove(best)
        taken.append(best)
        missing -= _values(best)
    return taken


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def _values(case: pytest.Item) -> set[tuple[str, int]]:
    """Each argument's name, and which object it is here."""
    arguments = case.callspec.params if hasattr(case, "callspec") else {}
    return {(name, id(value)) for name, value in arguments.items()}


def _is_named(item: pytest.Item, arguments: Sequence[str]) -> bool:
    """Returns True if the command line names the test, as in `FILE::TEST`."""
    own = item.nodeid.partition("::")[2]
    named = (argument.partition("::") for argument in arguments)
    return any(
        name
        and Path(file).resolve() == item.path
        and (own == name or own.startswith((f"{name}[", f"{name}::")))
        for file, _, name in named
    )
