"""eval.campaign: its parts are valid commands, and nothing that was measured is lost."""

import importlib
import time

import pytest
from rich.console import Console

from dart_jax.__main__ import PROGRAMS, find_main
from dart_jax.errors import UserError
from eval import campaign
from eval.campaign import PARTS, CampaignConfig, Part, check_device, run, run_part

GOOD = Part("good", 1, "products --rows 1 --shape 1x1 --repeats 1")
BAD = Part("bad", 1, "lossless --prompts 0")
LATE = Part("late", 10_000, "lossless")
SLOW = Part("slow", 1, "speedup --model demo")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_is_a_valid_command(part, monkeypatch, capsys):
    name, *options = part.call.split()
    main = find_main(PROGRAMS[name])
    module = importlib.import_module(main.__module__)

    def parse(config, args, description, parse=module.parse):
        parse(config, [*options, "--json", "x"], description)
        raise UserError("enough")

    monkeypatch.setattr(module, "parse", parse)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().err == "error: enough\n"


@pytest.mark.long
def test_a_campaign_keeps_what_it_has_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "PARTS", (GOOD, BAD, LATE))
    config = CampaignConfig(minutes=2, out=tmp_path / "c")
    outcomes = run(config, Console(quiet=True))
    assert outcomes == {"good": "done", "bad": "failed", "late": "not run"}
    report = (tmp_path / "c/good.json").read_bytes()
    text = (tmp_path / "c/summary.md").read_text()
    assert "| late | `lossless` | not run |" in text
    assert "error: --prompts must be at least 1" in text
    assert "1x1: microseconds" in text  # the part's own table
    assert run(config, Console(quiet=True)) == outcomes
    assert (tmp_path / "c/good.json").read_bytes() == report


@pytest.mark.long
def test_a_part_that_takes_too_long_is_ended(tmp_path):
    began = time.monotonic()
    assert run_part(SLOW, tmp_path, 3) == "out of time"
    assert time.monotonic() - began < 15


@pytest.mark.long
def test_the_device_check_finds_a_wrong_kernel(monkeypatch):
    assert max(check_device().values()) < 0.01
    real = campaign.attend
    wrong = lambda *args, kernel=None: real(*args) * (1.0 if kernel is None else 1.05)  # noqa: E731
    monkeypatch.setattr(campaign, "attend", wrong)
    with pytest.raises(UserError, match=r"attention: .* is off by 0.0[45]\d* of its result"):
        check_device()
