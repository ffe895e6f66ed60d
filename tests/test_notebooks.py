"""The notebooks run from top to bottom with the demo model, and are committed without outputs."""

import ast
import json
import os
import re
import sys

import nbclient
import nbformat
import pytest
from documents import ROOT, inline

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COLAB = re.compile(r"\(https://colab\.research\.google\.com/github/(\S+?/\S+?)/blob/main/(\S+?)\)")
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind):
    book = nbformat.read(path, 4)
    return [cell.source for cell in book.cells if cell.cell_type == kind]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["ngram", "quickstart", "train_drafter"]


@by_name
def test_nothing_but_sources_is_kept(path):
    book = json.loads(path.read_text())
    nbformat.validate(book)
    assert book["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(book["cells"]):
        assert cell["id"] == f"cell-{number:02}"
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@by_name
def test_the_badge_leads_here_and_the_first_cell_configures(path):
    first = cells(path, "markdown")[0]
    [(repository, file)] = COLAB.findall(first)
    assert file == f"notebooks/{path.name}"
    configuration = cells(path, "code")[0]
    assert "\nDEMO = True\n" in configuration
    assert f'REPOSITORY = "https://github.com/{repository}"' in configuration
    # Nothing else is to be changed: later cells read the names of this one alone.
    ast.parse(configuration)


def test_one_repository_and_one_way_to_install():
    texts = [path.read_text() for path in NOTEBOOKS]
    assert len({repository for text in texts for repository, _ in COLAB.findall(text)}) == 1
    assert len({cells(path, "code")[1] for path in NOTEBOOKS}) == 1


@by_name
def test_links_lead_somewhere(path):
    for text in cells(path, "markdown"):
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if not link.startswith("https:"):
                assert (path.parent / link).is_file(), link
        for code in inline(text):
            assert not code.startswith("python -m") or "." in code


@pytest.mark.long
@by_name
def test_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    """In a directory of its own, with this interpreter, wherever the package comes from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))  # no kernel but this one's
    book = nbformat.read(path, 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(book, kernel_name="python3", timeout=500, resources=resources)
    client.execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    data = [output.get("data", {}) for output in outputs]
    texts = [
        out.get("text") or shown.get("text/plain", "")
        for out, shown in zip(outputs, data, strict=True)
    ]
    drawings = [shown["image/svg+xml"] for shown in data if "image/svg+xml" in shown]
    check(path.stem, "".join(texts), drawings, tmp_path)


def check(name, printed, drawings, directory):
    """What the reader is told to see is there."""
    match name:
        case "quickstart":
            assert "as plain decoding: True" in printed
            assert len(drawings) == 4
            assert all('class="node root"' in tree for tree in drawings)
            assert any('class="node accepted"' in tree for tree in drawings)
            assert "\x1b[32m" in printed
            assert (directory / "speedup.png").is_file()
        case "train_drafter":
            assert "stopped; checkpoints:" in printed
            assert "resuming from the checkpoint of step" in printed
            assert "\ntau {" in printed
            assert (directory / "curves.png").is_file()
            assert (directory / "runs/dart/drafter/model.safetensors").is_file()
        case "ngram":
            assert "per n-gram" in printed
            taus = re.findall(r"^(drafter.*?|n-gram model) +tau ([\d.]+)$", printed, re.M)
            assert len(taus) == 3
            assert all(float(tau) > 1 for _, tau in taus)
