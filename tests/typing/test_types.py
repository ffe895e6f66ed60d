"""Type checkers understand the public API, find a user's mistakes, and the script runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

import dart_jax

SCRIPT = Path(__file__).with_name("user_script.py")

# In place of a line of the script -> a mistake that must be found.
MISTAKES = {
    "temprature": ("temperature=0.3, top_p=0.9", "temprature=0.3, top_p=0.9"),
    "not a number": ("temperature=0.3, top_p=0.9", "temperature='hot', top_p=0.9"),
    "list": ("text: str = completion.text", 'text: str = model.generate(["x"]).text'),
    "completion": ("own: GenerationConfig =", "own: int ="),
}


def check(checker, path, cache):
    """Lines with errors."""
    if checker == "pyright":
        command = [sys.executable, "-m", "pyright", "--outputjson"]
        command += ["--pythonpath", sys.executable, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        found = json.loads(done.stdout)["generalDiagnostics"]
        return {one["range"]["start"]["line"] + 1: one["message"] for one in found}
    command = ["mypy", "--python-executable", sys.executable, "--cache-dir", str(cache)]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(rf"{re.escape(path.name)}:(\d+): error: (.*)", done.stdout)
    assert len(re.findall(": error: ", done.stdout)) == len(found), done.stdout
    return {int(line): message for line, message in found}


@pytest.mark.long
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_checkers(checker, tmp_path, tmp_path_factory):
    cache = tmp_path_factory.mktemp("mypy")
    assert check(checker, SCRIPT, cache) == {}
    text = SCRIPT.read_text()
    lines = []
    for old, _ in MISTAKES.values():
        assert text.count(old) == 1, old
        lines.append(text[: text.index(old)].count("\n") + 1)
    wrong = text
    for n, (old, new) in enumerate(MISTAKES.values()):
        if n != 1:  # the same line as the first one
            wrong = wrong.replace(old, new)
    path = tmp_path / "wrong_script.py"
    path.write_text(wrong)
    assert {lines[0], *lines[2:]} <= set(check(checker, path, cache))
    path.write_text(text.replace(*MISTAKES["not a number"]))
    assert lines[1] in check(checker, path, cache)


@pytest.mark.long
def test_the_script_runs():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_uses_the_whole_api():
    text = SCRIPT.read_text()
    for name in dart_jax.__all__:
        assert re.search(rf"\b{name}\b", text.partition("\n)\n")[2]), name
