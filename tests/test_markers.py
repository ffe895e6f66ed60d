"""Which tests run every day, and which with --long."""

import re
import subprocess
import sys

import pytest
from documents import ROOT

SOURCE = """
import pytest

def test_short(): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.long(keep=2)
@pytest.mark.parametrize("case", range(5))
def test_grid(case): pass
"""


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["test_short", "test_grid[0]", "test_grid[1]"]),
        (("--long",), ["test_short", "test_long", *(f"test_grid[{n}]" for n in range(5))]),
    ],
    ids=["everyday", "long"],
)
def test_what_runs(options, names, tmp_path):
    (tmp_path / "conftest.py").symlink_to(ROOT / "tests/conftest.py")
    (tmp_path / "test_marked.py").write_text(SOURCE)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(tmp_path), "--collect-only", *options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert re.findall(r"::(\S+)", done.stdout) == names, done.stdout + done.stderr
