"""eval.campaign: its parts are valid commands, and nothing that was measured is lost."""

import importlib
import io
import json
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from dart_jax.__main__ import PROGRAMS, find_main
from dart_jax.errors import UserError
from eval.campaign import program
from eval.campaign.device import check_device
from eval.campaign.parts import Part, parts, tiny_parts
from eval.campaign.program import CampaignConfig
from eval.campaign.runner import run_part

BAD = Part("bad", "it fails", "lossless --prompts 0", 1, ("json",))
SLOW = Part("slow", "it takes long", "speedup", 1, ("json",))
DEVICE = tiny_parts()[0]


def campaign(config):
    """Runs a campaign; returns the outcomes and what it printed."""
    out = io.StringIO()
    outcomes = program.run(config, Console(file=out, width=200))
    return outcomes, out.getvalue()


@pytest.mark.parametrize(
    "part", dict.fromkeys([*parts(demo=True), *tiny_parts()]), ids=lambda part: part.command
)
def test_every_part_is_a_valid_command(part, monkeypatch, tmp_path):
    """Its program accepts the options, and those of the reports."""
    name, *options = part.call.split()
    for report in part.reports:
        options += [f"--{report}", str(tmp_path / f"report.{'png' if report == 'plot' else 'x'}")]
    main = find_main(PROGRAMS[name])
    module = importlib.import_module(main.__module__)
    parsed = []

    def parse(config, args, description):
        parsed.append(real(config, options, description))
        raise UserError("enough")

    real = module.parse
    monkeypatch.setattr(module, "parse", parse)
    with pytest.raises(SystemExit):
        main([])
    assert len(parsed) == 1


@pytest.mark.long
def test_a_campaign_keeps_what_it_has_and_goes_on(tmp_path, monkeypatch):
    """A part fails, one has no time, one is done; later only the first two are run."""
    late = Part("late", "there is no time", "lossless", 10_000, ("json",))
    monkeypatch.setattr(program, "tiny_parts", lambda: (DEVICE, BAD, late))
    first = CampaignConfig(minutes=1, out=tmp_path / "c", tiny=True)
    outcomes, said = campaign(first)
    assert {name: each.state for name, each in outcomes.items()} == {
        "device": "done",
        "bad": "failed",
    }
    assert outcomes["bad"].message == "--prompts must be at least 1"
    assert "late: not run, needs 10000 s" in said
    summary = (tmp_path / "c/summary.md").read_text()
    assert "| late | there is no time | `dart-jax lossless` |  | not run |" in summary
    assert "failed: --prompts must be at least 1" in summary
    assert "- jax: " in summary  # what the device part found

    with pytest.raises(UserError, match="holds a campaign"):
        campaign(first)
    outcomes, said = campaign(CampaignConfig(minutes=1, resume=tmp_path / "c", tiny=True))
    assert "device: done before" in said
    assert "bad: failed" in said
    assert outcomes["device"].state == "done"
    # Of another revision nothing is taken over.
    path = tmp_path / "c/summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "revision": "other"}))
    _, said = campaign(CampaignConfig(minutes=1, resume=tmp_path / "c", tiny=True))
    assert "device: done after" in said


@pytest.mark.long
def test_a_part_that_takes_too_long_is_ended(tmp_path):
    began = time.monotonic()
    outcome = run_part(SLOW, tmp_path, 3)
    assert outcome.state == "out of time"
    assert time.monotonic() - began < 60
    assert (tmp_path / "output.txt").exists()


@pytest.mark.long
def test_ctrl_c_ends_the_part_as_well(tmp_path):
    command = ["campaign", "--tiny", "--parts", "device", "speedup-demo", "--out", "c"]
    # Shells start programs in the background with this signal ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "dart_jax", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not (tmp_path / "c/speedup-demo").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "interrupted"
    states = [p["state"] for p in json.loads((tmp_path / "c/summary.json").read_text())["parts"]]
    assert states == ["done"]


@pytest.mark.long
def test_the_device_check_finds_wrong_products(monkeypatch):
    found = check_device()
    assert found["differences"]["float32"] < 1e-3
    monkeypatch.setattr("eval.campaign.device.jnp.asarray", lambda x, dtype: 1.01 * x)
    with pytest.raises(UserError, match="products are off by"):
        check_device()


def test_the_list_names_every_part(capsys):
    program.main(["--list", "--demo"])
    printed = capsys.readouterr().out
    for part in parts(demo=True):
        assert part.command in printed
