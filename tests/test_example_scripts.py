"""The scripts of `examples/` run with the demo model, and do what they say.

`.ci/run` runs them beside the guides.
"""

import re
import runpy
import sys

import pytest
from chat_demo import write_chat_target
from documents import ROOT
from serve_process import QUICK, server

from dart_jax.model import DEMO

EXAMPLES = ROOT / "examples"

# Script -> arguments, of which TARGET has a chat template, and what it prints.
SCRIPTS = {
    "offline_batch.py": ("--model demo", r'(\{.*"tau": .*\}\n){3}'),
    "chat.py": ("first second --model TARGET", r"> first\n.+\n\n> second\n.+\n\n"),
    "streaming.py": ("--model demo", r".*\[[^]]+\].*\n---\n.*"),
    "structured_output.py": ("--model demo", r".{0,16}: -?\d+ degrees, (clear|cloudy|rain)\n"),
    "custom_drafter.py": ("--model demo", r".*the same text: True.*"),
    "server_client.py": ("--url ADDRESS/v1", r".*\nget_weather .{0,20}\n"),
}


def test_every_script_is_run():
    assert SCRIPTS.keys() == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name, tmp_path, monkeypatch, capsys):
    """As their docstrings say, with further arguments."""
    (arguments, printed), target = SCRIPTS[name], str(write_chat_target(tmp_path))

    def run(address=""):
        words = arguments.replace("TARGET", target).replace("ADDRESS", address).split()
        monkeypatch.setattr(sys, "argv", [name, *words])
        return runpy.run_path(str(EXAMPLES / name), run_name="__main__")["__doc__"]

    if "ADDRESS" in arguments:
        with server("--target", target, "--drafter", str(DEMO / "drafter"), *QUICK) as served:
            doc = run(served.address)
    else:
        doc = run()
    assert f"python examples/{name}" in doc
    assert re.fullmatch(printed, capsys.readouterr().out, re.S)
