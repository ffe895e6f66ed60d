"""The notebooks run from top to bottom with SmolLM2, and are committed without outputs."""

import builtins
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import nbclient
import nbformat
import pytest
from documents import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind):
    book = nbformat.read(path, 4)
    return [cell.source for cell in book.cells if cell.cell_type == kind]


def test_a_dtype_is_chosen_in_one_place():
    assert all(path.read_text().count("resolve_dtype(") == 1 for path in NOTEBOOKS)


@by_name
def test_sources_alone_are_kept_and_the_first_cell_configures(path):
    book = json.loads(path.read_text())
    nbformat.validate(book)
    for number, cell in enumerate(book["cells"]):
        assert (cell["id"], cell["metadata"]) == (f"cell-{number:02}", {})
        assert not cell.get("outputs")
    configuration, *others = cells(path, "code")
    assert '\nMODEL = "smollm2"\n' in configuration
    # The only place of the repository's address, which nobody but its owner knows.
    assert configuration.endswith('\nREPOSITORY = ""')
    assert others[:2] == cells(NOTEBOOKS[0], "code")[1:3]
    assert "dtype=DTYPE" in "".join(others[2:])
    assert "REPOSITORY" not in "".join(others[2:])
    for link in re.findall(r"\]\(([^)\s]+)\)", "".join(cells(path, "markdown"))):
        assert link.startswith("https:") or (path.parent / link).is_file(), link


@pytest.mark.parametrize(
    ("modules", "gpu", "plugin"),
    [
        ((), False, []),
        ((), True, ["jax[cuda13]"]),
        (("jax_cuda12_plugin",), True, ["jax[cuda12]"]),  # as Colab has it
        (("libtpu",), False, ["jax[tpu]"]),
    ],
)
def test_the_package_and_the_plugin_of_the_device_are_installed(monkeypatch, modules, gpu, plugin):
    """From an address that is set, or asked for."""
    commands, address = [], "https://github.com/somebody/dart_jax"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in modules or None)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/nvidia-smi" if gpu else None)
    monkeypatch.setattr(subprocess, "run", lambda words, **_: commands.append(words))
    monkeypatch.setattr(builtins, "input", lambda question: f" {address}\n")
    for repository in (address, ""):
        commands.clear()
        exec(cells(NOTEBOOKS[0], "code")[1], {"REPOSITORY": repository})
        packages = [word for words in commands for word in words[words.index("--quiet") + 1 :]]
        assert packages == [f"dart-jax[plot,train] @ git+{address}", *plugin]


@pytest.mark.long(ci=True)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@by_name
def test_runs_from_top_to_bottom(path, dtype, tmp_path, monkeypatch):
    """In a directory of its own, with this interpreter, wherever the package comes from; in float16
    as on a T4."""
    if dtype == "float16" and path.stem != "quickstart":
        pytest.skip("decoding in float16 is the quick start's")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))  # no kernel but this one's
    book = nbformat.read(path, 4)
    for cell in book.cells:
        cell.source = cell.source.replace('resolve_dtype("auto")', f'resolve_dtype("{dtype}")')
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
    pages = [shown["text/html"] for shown in data if "text/html" in shown]
    check(path.stem, "".join(texts), drawings, pages, tmp_path)
    assert f"\nweights in {dtype}\n" in "".join(texts)


def check(name, printed, drawings, pages, directory):
    """Finds all that the reader is told to see."""
    match name:
        case "quickstart":
            assert "as plain decoding: True" in printed
            assert len(drawings) == 4
            assert all('class="node root"' in tree for tree in drawings)
            assert re.search("finish (length|stop); drafted tokens are marked", pages[-1])
            assert "background: #2da44e33" in pages[-1]
            assert (directory / "speedup.png").is_file()
        case "train_drafter":
            assert "resuming from the checkpoint of step" in printed
            assert "\ntau {" in printed
            assert (directory / "runs/dart/drafter/model.safetensors").is_file()
        case "ngram":
            taus = re.findall(r"^(drafter.*?|n-gram model) +tau ([\d.]+)$", printed, re.M)
            assert len(taus) == 3
            assert all(float(tau) > 1 for _, tau in taus)
        case _:
            pytest.fail("no test knows what this notebook shows")
