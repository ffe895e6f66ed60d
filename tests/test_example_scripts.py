"""The scripts of `examples/` run with the demo model, and do what they say.

`.ci/run` runs them beside the tutorial and the guides.
"""

import re
import runpy
import sys
from pathlib import Path

import pytest
from chat_demo import write_chat_target
from documents import ROOT
from serve_process import QUICK, server

from dart_jax.model import DEMO

pytestmark = pytest.mark.long

EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a script as its docstring says, with further arguments; returns what it prints."""

    def run(name, *args):
        path = EXAMPLES / name
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, args)])
        names = runpy.run_path(str(path), run_name="__main__")
        assert f"python examples/{name}" in names["__doc__"]
        return capsys.readouterr().out

    return run


def test_every_script_is_run():
    run = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    assert run == {path.name for path in EXAMPLES.glob("*.py")}


def test_offline_batch(run):
    records = run("offline_batch.py", "--model", "demo").splitlines()
    assert len(records) == 3
    assert '"tau": ' in records[0]


def test_chat(run, tmp_path):
    """With a chat template, which the demo does not have."""
    target = write_chat_target(tmp_path)
    out = run("chat.py", "first", "second", "--model", target, "--max-new-tokens", 16)
    assert re.fullmatch(r"> first\n.+\n\n> second\n.+\n\n", out, re.S)


def test_streaming(run):
    out = run("streaming.py", "--model", "demo")
    assert re.search(r"\[[^]]+\].*\n---\n", out, re.S)


def test_structured_output(run):
    out = run("structured_output.py", "--model", "demo")
    assert re.fullmatch(r".{0,16}: -?\d+ degrees, (clear|cloudy|rain)\n", out, re.S)


def test_custom_drafter(run):
    out = run("custom_drafter.py", "--model", "demo")
    assert "the same text: True" in out
    assert float(out.split()[1].strip(",")) > 2


def test_server_client(run, tmp_path):
    target = write_chat_target(tmp_path)
    with server("--target", str(target), "--drafter", str(DEMO / "drafter"), *QUICK) as served:
        out = run("server_client.py", "--url", f"{served.address}/v1")
    assert re.search(r"\nget_weather .{0,20}\n$", out, re.S)
