"""eval.campaign: parts that end, fail or take too long; what is measured already; the whole."""

import dataclasses
import io
import json
import time

import pytest
from rich.console import Console

from dart_jax.programs.command_line import parse
from eval.campaign import program
from eval.campaign.__main__ import main
from eval.campaign.parts import CPU_PARTS, GPU_PARTS, Part
from eval.campaign.program import CampaignConfig, run
from eval.lossless.config import LosslessConfig
from eval.peers.config import PeersConfig
from eval.serving.config import ServingBenchConfig
from eval.speedup.config import SpeedupConfig

# Writes a report, fails, or waits, as its option says.
PROGRAM = """
import json, sys, time
way, _, path = sys.argv[1:]
print("begun", way)
if way == "fails":
    sys.exit("error: no such thing")
if way == "waits":
    time.sleep(600)
table = {"title": "T", "columns": ["name", "x"], "rows": [[way, "1"]], "caption": "c"}
report = {"command": "python part", "environment": {"device": "d"}, "tables": [table]}
open(path, "w").write(json.dumps(report))
if way == "wrong":
    sys.exit("what was measured is wrong")
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Takes these as the ways of the campaign's parts."""
    (tmp_path / "some_part.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def take(*ways):
        every = tuple(Part(f"p{n}", "a part", "some_part", way, way) for n, way in enumerate(ways))
        monkeypatch.setattr(program, "GPU_PARTS", every)

    return take


def measured(directory, **options):
    return run(CampaignConfig(directory, **options), Console(file=io.StringIO()))


def test_each_part_ends_in_its_way(parts, tmp_path, monkeypatch):
    """A failure does not end the others, and what is measured is kept."""
    monkeypatch.setattr(program, "_PATIENCE", 1.0)  # in the background Ctrl-C may be ignored
    out = tmp_path / "out"
    parts("works", "fails", "again", "wrong", "waits", "late")
    began = time.monotonic()
    states = measured(out, minutes=0.05)
    assert time.monotonic() - began < 20
    assert states == {
        "p0": "measured",
        "p1": "failed: error: no such thing (p1.log)",
        "p2": "measured",
        "p3": "failed: what was measured is wrong (p3.log)",
        "p4": "the time ended before it",
        "p5": "no time was left",
    }
    text = (out / "REPORT.md").read_text()
    for words in ("- device: d", "## p0: a part", "| works |", "error: no such thing", "| again |"):
        assert words in text
    assert (out / "p4.log").read_text().startswith("begun waits\n")
    before = (out / "p0.json").stat().st_mtime_ns
    parts(*6 * ["works"])
    assert set(measured(out).values()) == {"measured"}
    assert (out / "p0.json").stat().st_mtime_ns == before
    assert "error" not in (out / "REPORT.md").read_text()


def test_some_parts_alone(parts, tmp_path, capsys):
    parts("works", "works", "fails")
    main(["--out", str(tmp_path / "out"), "--only", "p1"])
    assert (tmp_path / "out/p1.json").exists()
    assert not (tmp_path / "out/p0.json").exists()
    assert str(tmp_path / "out/REPORT.md") in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["--out", str(tmp_path / "out")])
    assert end.value.code == 1
    main(["--out", str(tmp_path / "out"), "--only", "p0"])  # does not forget the other
    assert "## p1: a part" in (tmp_path / "out/REPORT.md").read_text()


CONFIGS = {
    "eval.lossless": LosslessConfig,
    "eval.peers": PeersConfig,
    "eval.serving": ServingBenchConfig,
    "eval.speedup": SpeedupConfig,
}


def test_what_the_documents_show_can_be_measured(tmp_path):
    """On a CPU; parts whose models are not there are left out by name."""
    models, data = tmp_path / "my models", tmp_path / "my data"
    config = CampaignConfig(tmp_path / "out", cpu=True, data_dir=data, models=models)
    for small in (False, True):
        for part in CPU_PARTS:
            _, module, *words = dataclasses.replace(config, small=small).command(part)
            options = parse(CONFIGS[module], words, "")
            assert getattr(options, "data_dir", None) in ((None,) if small else (None, data))
    lacking = {part.name: config.lacks(part) for part in CPU_PARTS}
    assert {name for name, why in lacking.items() if why} == {
        *(f"llama-cpp-{type}" for type in ("q4_0", "q8_0", "f16")),
        *("copying-qwen2.5-coder-0.5b", "copying-gemma-3-270m"),
    }
    assert lacking["llama-cpp-f16"] == "no smollm2-f16.gguf in --models"
    models.mkdir()
    (models / "smollm2-f16.gguf").touch()
    assert [config.lacks(part) for part in CPU_PARTS if part.name == "llama-cpp-f16"] == [None]


@pytest.mark.long(ci=True)
def test_a_whole_campaign(tmp_path):
    out = tmp_path / "out"
    states = measured(out, minutes=20, small=True)
    assert states == {part.name: "measured" for part in GPU_PARTS}
    text = (out / "small/REPORT.md").read_text()
    assert all(f"## {part.name}: {part.what}" in text for part in GPU_PARTS)
    assert "- jax: " in text
    for part in GPU_PARTS:
        report = json.loads((out / f"small/{part.name}.json").read_text())
        assert report["tables"] or part.name == "training"
