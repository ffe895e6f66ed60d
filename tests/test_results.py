"""Results have one form, their pages show all of it, and the headline figures are theirs."""

import dataclasses
import datetime
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from documents import ROOT
from results_pages import page, pages, reports
from results_tables import DOCUMENTS, updated

from dart_jax.programs import provenance
from dart_jax.programs.tables import table
from eval.campaign.parts import CPU_PARTS

RESULTS = reports()
# The keys of every report and those of some, with their types.
FORM = {"title": str, "date": str, "command": str, "environment": dict, "tables": list}
ADDED = {"note": str, "figure": str, "transcribed": bool}


def check_form(report):
    optional = {key: kind for key, kind in ADDED.items() if key in report}
    for key, kind in (FORM | optional).items():
        assert isinstance(report[key], kind), key
        assert report[key], key
    datetime.datetime.fromisoformat(report["date"])
    assert "device" in report["environment"]
    assert all(isinstance(value, str) for value in report["environment"].values())
    for each in report["tables"]:
        assert set(each) == {"title", "columns", "rows", "caption"}
        assert {len(row) for row in each["rows"]} == {len(each["columns"])}
        assert all(isinstance(cell, str) for row in each["rows"] for cell in row)


@pytest.mark.parametrize("path", RESULTS)
def test_every_result_has_the_form(path):
    report = RESULTS[path]
    check_form(report)
    # What `eval.campaign --cpu` measures is replaced when it is measured again.
    name, folder = Path(path).stem, Path(path).parent.name
    parts = {part.name for part in CPU_PARTS} if folder == "cpu" else set()
    assert name in parts or name.startswith(report["date"][:10])
    # The raw data of these devices are gone.
    assert not report.get("transcribed") or folder in ("h100", "h200")
    assert (ROOT / "docs" / report.get("figure", "")).exists()
    assert not re.search(r"/(home|root|tmp|work)/", json.dumps(report))


def test_every_file_has_a_page_in_the_list():
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("results/**/*") if path.is_file()}
    assert files == {path.replace(".md", ".json") for path in RESULTS}
    index = pages()["results/all.md"]
    assert set(re.findall(r"\]\((.*?)\)", index)) == {p.removeprefix("results/") for p in RESULTS}


def test_reports_of_programs_have_the_form(tmp_path, monkeypatch):
    """With the command as it was typed, but for the files that it wrote."""
    config = dataclasses.make_dataclass("Config", ["json", "file"])
    words = ["eval.x", "--json", "a", "--size", "1", "2", "--plot=b", "--name", "a b"]
    monkeypatch.setattr(sys, "argv", words)
    provenance.write_report(
        config(tmp_path / "r.json", ROOT / "docs/step.svg"),
        "A title",
        [table("T | 1", ("method", "a_b"), [("dart", "1 < 2"), ("plain", "two\nlines")], "same")],
        raw=[1.5],
    )
    report = json.loads((tmp_path / "r.json").read_text())
    check_form(report)
    assert report["command"].endswith(" --size 1 2 --name 'a b'")
    assert report["config"]["file"] == "docs/step.svg"
    text = page(report)
    assert "**T \\| 1**\n\n| method | a\\_b |\n| --- | ---: |\n| dart | 1 &lt; 2 |" in text
    assert "| plain | two<br>lines |\n\nsame\n" in text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_are_those_of_the_reports(name):
    """`PYTHONPATH=. python docs/results_tables.py` writes them."""
    text = (ROOT / name).read_text()
    assert updated(text) == text
    assert updated(re.sub(r"\d+", "0", text)) != text


def numbers(text):
    """The numbers of a text, without those of names such as Q4_1."""
    return set(re.findall(r"(?<![\w.-])\d[\d,.]*(?<![,.])", text))


@pytest.mark.parametrize(("name", "least"), [("results.md", 60), ("rejected.md", 15)])
def test_headline_figures_are_those_of_the_page_beside_them(name, least):
    text = (ROOT / "docs" / name).read_text()
    figures = 0
    # A row of a table, a point of a list or a paragraph; each figure stands before its link.
    for part in re.split(r"\n\n|\n- |\|\n", text):
        if part.startswith("|") and "](" not in part:
            continue  # the head of a table
        if name == "rejected.md" and re.search(r"\| \d{4}-\d\d-\d\d \|", part):
            continue  # its raw data were not kept, as the page says
        *linked, rest = re.split(r"\]\((\S+?)\)", part)
        assert not numbers(rest), f"no page for {rest}"
        for said, link in zip(linked[::2], linked[1::2], strict=True):
            if found := numbers(said):
                made = link.removeprefix("../").replace(".json", ".md")
                assert found <= numbers(pages()[made]), f"{link}: {said}"
                figures += len(found)
    assert figures > least


def test_statements_are_those_of_the_tables():
    """What README.md and docs/results.md say in words."""

    def means(name, figure):
        """Temperature -> method -> mean over the benchmarks of a report."""
        found = defaultdict(lambda: defaultdict(list))
        for setting in RESULTS[f"results/cpu/{name}.md"]["settings"]:
            for method, row in setting["groups"]["all"].items():
                found[setting["temperature"]][method].append(row[figure])
        return {
            t: {k: statistics.mean(v) for k, v in rows.items()} for t, rows in sorted(found.items())
        }

    # Sampling lowers acceptance.
    taus = [rows["dart"] for rows in means("sampled", "tau").values()]
    assert len(taus) == 3
    assert taus == sorted(taus, reverse=True)
    # DART is the fastest of the methods, and every text is plain decoding's.
    [speedups] = means("benchmarks", "speedup").values()
    assert max(speedups, key=speedups.get) == "dart"
    same, prompts = (means("benchmarks", figure)[0.0] for figure in ("identical", "prompts"))
    assert same == prompts
    assert all(count >= 8 for count in prompts.values())
    # Weights in blocks and in 16 bits decode faster than in llama.cpp.
    ratios = {}
    for name in ("llama-cpp", "llama-cpp-q4_0", "llama-cpp-q8_0", "llama-cpp-f16"):
        rows = RESULTS[f"results/cpu/{name}.md"]["measurements"]
        rates = {(row["engine"], row["threads"]): row["token_seconds"] for row in rows}
        other, own = (statistics.median(rates[each, 2]) for each in ("llama.cpp", "plain"))
        ratios[name] = other / own
    assert f"{ratios.pop('llama-cpp-f16'):.1f}" == "1.4"
    assert [f"{pick(ratios.values()):.1f}" for pick in (min, max)] == ["1.7", "2.9"]
    # A server's drafts pay for one client, and not for 16.
    loads = RESULTS["results/cpu/server.md"]["loads"]
    ratios = {load["clients"]: statistics.median(load["ratios"]) for load in loads}
    assert ratios[1] > 1.2
    assert ratios[16] < 1
