"""eval.peers: the report, the engines' tokens, and engines that cannot run."""

import dataclasses
import io
import json
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import tiny_model
from gguf_files import no_meaning, tiny_gguf
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.weights import hub
from eval.peers.config import PeersConfig
from eval.peers.engine import (
    ENGINES,
    LLAMA,
    LLAMA_TEXT_DRAFTS,
    PLAIN,
    Setup,
    load_own,
)
from eval.peers.program import Peer, run

LENGTH, NEW = 64, 6
PROMPTS = [np.arange(3, 20, dtype=np.int32), np.arange(40, 49, dtype=np.int32)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


def setup(target, work, name, threads=1):
    choice = ModelChoice(target=str(target), dtype="float32")
    directory = hub.resolve(target, patterns=hub.TARGET)
    return Setup(name, choice, directory, None, threads, LENGTH, work)


def texts(*options):
    with Peer(setup(*options)) as peer:
        return [peer([prompt], NEW).tokens[0].tolist() for prompt in PROMPTS]


@pytest.mark.long
def test_report(tiny, tmp_path, monkeypatch):
    """Plain decoding and DART; an engine that is not installed; one that cannot take the target."""
    absent = ENGINES["transformers"]._replace(package="no_such")
    monkeypatch.setitem(ENGINES, "transformers", absent)
    present = ENGINES[LLAMA]._replace(package=None)
    monkeypatch.setitem(ENGINES, LLAMA, present)
    monkeypatch.setitem(ENGINES, "ngram-mod", ENGINES["ngram-mod"]._replace(program="no_such"))
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "def f(x):"}\n{"prompt": "import os"}\n')
    config = PeersConfig(
        target=str(tiny.target),
        drafter=str(tiny.drafter),
        ngram=str(tiny.ngram),
        engine=("transformers", LLAMA, "ngram-mod", "dart"),
        bench=str(questions),
        new_tokens=NEW,
        repeats=2,
        tree_nodes=3,
        threads=(1,),
        json=tmp_path / "report.json",
    )
    printed = io.StringIO()
    run(config, Console(file=printed, width=120))
    assert (
        "left out: PyTorch: it needs no_such: pip install 'dart-jax[peers]'" in printed.getvalue()
    )
    assert "left out: llama.cpp: reads GGUF targets only; " in printed.getvalue()
    assert "left out: llama.cpp, ngram-mod: no_such is not on the PATH" in printed.getvalue()
    assert "2/2" in printed.getvalue()
    report = json.loads(config.json.read_text())
    assert len(report["left_out"]) == 3
    ours, dart = report["measurements"]
    assert (ours["engine"], dart["engine"]) == (PLAIN, "dart")
    assert dart["identical"] == dart["prompts"] == 2
    ratios = zip(ours["token_seconds"], dart["token_seconds"], strict=True)
    assert dart["decoding_speedups"] == [a / b for a, b in ratios]
    assert sorted(tmp_path.iterdir()) == [questions, config.json]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["GGUF", "directory"])
def test_same_tokens(kind, tiny, tmp_path):
    """Of all engines that are installed and take the target."""
    target, names = tiny.target, ["transformers", "dart"]
    if kind == "GGUF":
        tokenizer = no_meaning(61)  # llama.cpp needs a merge
        tokenizer["tokenizer.ggml.tokens"][:3] = "a", "b", "ab"
        tokenizer["tokenizer.ggml.merges"] = ["a b"]
        target, names = tiny_gguf(tmp_path, "Llama", tokenizer=tokenizer), [*names, LLAMA]
        if shutil.which("llama-server"):
            names += LLAMA_TEXT_DRAFTS
    packages = {name: ENGINES[name].package for name in names}
    names = [name for name in names if not packages[name] or find_spec(packages[name])]
    expected = texts(target, tmp_path, PLAIN)
    assert {name: texts(target, tmp_path, name) for name in names} == dict.fromkeys(names, expected)


def test_an_engine_that_cannot_draft(tiny, tmp_path, monkeypatch):
    own = setup(tiny.target, tmp_path, "dart", threads=999)
    choice = dataclasses.replace(own.model, no_text_drafts=True)
    with pytest.raises(UserError, match=r"^nothing drafts; pass a --drafter, or leave --no-text-"):
        load_own(own._replace(model=choice))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"^llama-server is not on the PATH$"):
        ENGINES["ngram-mod"].check()
