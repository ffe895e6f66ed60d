"""Ctrl-C in a program that can resume."""

import runpy
import sys
from pathlib import Path

import pytest
import tyro

TRAIN = Path(__file__).parents[1] / "train"


@pytest.mark.parametrize("program", ["ablate", "demo", "drafter", "ngram", "regenerate"])
def test_one_line_and_no_traceback(monkeypatch, capfd, program):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tyro, "cli", interrupted)
    monkeypatch.setattr(sys, "argv", [program])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(TRAIN / f"{program}.py"), run_name="__main__")
    assert end.value.code == 130
    message = "interrupted; run the same command again to continue\n"
    assert capfd.readouterr().err == message
