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


def check(checker, paths, cache):
    """Of each script: line of an error -> message."""
    found = {path: {} for path in paths}
    if checker == "pyright":
        command = [sys.executable, "-m", "pyright", "--outputjson"]
        command += ["--pythonpath", sys.executable, *paths]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        for one in json.loads(done.stdout)["generalDiagnostics"]:
            found[Path(one["file"])][one["range"]["start"]["line"] + 1] = one["message"]
        return found
    command = [sys.executable, "-m", "mypy", "--python-executable", sys.executable]
    command += ["--cache-dir", str(cache), *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors = re.findall(r"^(.*):(\d+): error: (.*)", done.stdout, re.M)
    assert done.stdout.count(": error: ") == len(errors), done.stdout
    for file, line, message in errors:
        found[ROOT / file][int(line)] = message
    return found


@pytest.mark.long(ci=True)
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_checkers(checker, tmp_path):
    text = SCRIPT.read_text()
    expected = {SCRIPT: set()}
    for n, (old, new) in enumerate(MISTAKES.values()):
        assert text.count(old) == 1, old
        path = tmp_path / f"mistake_{n}.py"
        path.write_text(text.replace(old, new))
        expected[path] = {text[: text.index(old)].count("\n") + 1}
    found = check(checker, list(expected), tmp_path / "cache")
    assert found[SCRIPT] == {}
    for path, lines in expected.items():
        assert lines <= set(found[path]), path


@pytest.mark.long(ci=True)
def test_the_script_runs():
    subprocess.run([sys.executable, SCRIPT], check=True, timeout=500)


def test_the_script_uses_the_whole_api():
    text = SCRIPT.read_text()
    for name in dart_jax.__all__:
        assert re.search(rf"\b{name}\b", text.partition("\n)\n")[2]), name
