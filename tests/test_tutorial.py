"""The commands of `docs/tutorial.md` run in order, in the form printed, and show what it promises.

Only SHORT changes them. `DART_TUTORIAL=whole pytest -s -n 0 --long tests/test_tutorial.py` leaves
them as they are, compiles programs as users do, and prints their outputs and times.
"""

import contextlib
import os
import re
import shlex
import sys
import time

import needs
import printed
import pytest
from documents import ROOT, blocks
from serve_process import server

ADDRESS = "http://127.0.0.1:8000"
BLOCKS = [
    block
    for block in blocks((ROOT / "docs/tutorial.md").read_text())
    if block.language in ("sh", "python")
]
SHORT = {
    "--prompts 4": "--prompts 1 --max-new-tokens 16 --repeats 1",
    "--max-new-tokens 160 --minutes 6": "--max-new-tokens 24 --minutes 0.01",  # one batch
    "--batch-size 8": "--batch-size 2",
    "--eval-prompts 4 --minutes 6": "--eval-prompts 1 --eval-new-tokens 8 --steps 2",
}

# By which `conftest.py` has tests compile quickly, for programs that are slower.
QUICK_COMPILATION = (
    "XLA_FLAGS",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)

# What is printed by the block that has these words.
PROMISED = {
    "dart-jax\n": "train-drafter +train a drafter",
    "speedup --model smollm2 --prompts": r"speed-up .* tau .* same",
    " generate": r"\d tokens/s.*\d% drafted, tau \d",
    "regenerate": r"^\d+ answers, [\d,]+ tokens",
    "train-drafter": r"alpha_1",
    "compare": r"tau",
    "serve --target": "dart_jax serves own",
    "curl": '"completion_tokens":40',
    "OpenAI(": r"\w+ \w+",
}


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A directory in which the commands find what a clone has, and write beside it."""
    needs.smollm2()
    for name in ("dart_jax", "train"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_the_commands_run_as_they_are_printed(clone, capsys, monkeypatch):
    install, *rest = BLOCKS
    assert "pip install -e" in install.text  # as .ci/run does for the README
    assert all(any(long in block.text for block in rest) for long in SHORT)
    short = {} if os.environ.get("DART_TUTORIAL") == "whole" else SHORT
    if not short:
        for variable in QUICK_COMPILATION:
            monkeypatch.delenv(variable, raising=False)
    address, seen = ADDRESS, set()
    with contextlib.ExitStack() as stack:
        for language, text, _ in rest:
            block, began = text, time.monotonic()
            for long, instead in {**short, ADDRESS: address}.items():
                block = block.replace(long, instead)
            if language == "python":
                names: dict = {}
                exec(compile(block, "docs/tutorial.md", "exec"), names)
                if "client" in names:
                    names["client"].close()
                out = capsys.readouterr().out
            elif "dart-jax serve " in block:
                _, _, *options = shlex.split(block.replace("\\\n", " "))
                served = stack.enter_context(server(*options))
                address, out = served.address, "dart_jax serves own"
            else:
                programs = f"{sys.executable} -P -m dart_jax"  # of this checkout
                block = re.sub(r"^dart-jax\b", programs, block, flags=re.M)
                out = printed.run(["bash", "-euo", "pipefail", "-c", block], os.environ)
            with capsys.disabled():
                if not short:
                    print(f"\n{text}{out}--- {time.monotonic() - began:.0f} s")
            for words, pattern in PROMISED.items():
                if words in text:
                    seen.add(words)
                    assert re.search(pattern, out, re.M), f"{text}\n{out}"
    assert seen == PROMISED.keys()
    assert (clone / "runs/own/drafter/model.safetensors").is_file()
