"""The Dockerfile: linted, and in step with the package that it installs."""

import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from documents import ROOT, tracked

TEXT = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Instructions with their continuation lines, as (word, rest).
INSTRUCTIONS = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(r"\\\n", " ", TEXT).splitlines()
    if line and not line.startswith("#")
]


def of(word):
    return [rest for name, rest in INSTRUCTIONS if name == word]


def copied():
    """What is copied from the checkout."""
    words = [rest.split() for rest in of("COPY") if not rest.startswith("--from=")]
    return {source for sources in words for source in sources[:-1]}


def test_the_linter_finds_nothing():
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.fail("hadolint is missing; install it with pip install -e '.[test]'")
    child = subprocess.run([program, "--no-color", "-"], input=TEXT, capture_output=True, text=True)
    assert child.stdout + child.stderr == ""


def test_what_is_copied_is_there_and_suffices_for_the_wheel():
    assert all((ROOT / path).exists() for path in copied() - {"./"})
    project, built = PROJECT["project"], PROJECT["tool"]["scikit-build"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"]}
    needed |= {built["cmake"]["source-dir"], *built["wheel"]["packages"].values()}
    assert copied() == needed


def test_only_what_is_copied_reaches_the_builder():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied()
    for path in tracked():
        for rule in rules[1:]:
            if not rule.startswith("!"):  # nothing that git keeps is left out of what is copied
                assert not fnmatch.fnmatch(f"/{path}", rule.replace("**", "*")), path
