"""eval.peers: the report, and what is said of engines that do not run."""

import importlib.util
import io
import json

import numpy as np
import pytest
import tiny_model
from gguf_files import tiny_gguf
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.weights import hub
from eval.peers.engine import ENGINES, PLAIN, Setup
from eval.peers.program import Peer, PeersConfig, run

LENGTH, NEW = 64, 6


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


def decode(target, name, prompts):
    """What an engine continues the prompts with."""
    target = hub.resolve(target, patterns=hub.TARGET)
    precision = ENGINES[name].precisions[0]
    config = PeersConfig(target=str(target), dtype="float32")
    with Peer() as peer:
        peer.load(Setup(name, precision, config, target, 1, LENGTH))
        return [peer.decode(prompt, NEW)[0] for prompt in prompts]


@pytest.mark.long
def test_report(tiny, tmp_path, monkeypatch):
    """Plain decoding and DART; an engine that is not installed; one that cannot take the target."""
    absent = ENGINES["transformers"]._replace(package=("no-such", "no_such_package"))
    monkeypatch.setitem(ENGINES, "transformers", absent)
    config = PeersConfig(
        target=str(tiny.target),
        drafter=str(tiny.drafter),
        ngram=str(tiny.ngram),
        engine=("transformers", "llama.cpp", "dart"),
        prompts=1,
        new_tokens=NEW,
        repeats=2,
        threads=1,
        json=tmp_path / "report.json",
    )
    printed = io.StringIO()
    run(config, Console(file=printed, width=120))
    assert "left out: PyTorch is not installed: pip install no-such" in printed.getvalue()
    report = json.loads(config.json.read_text())
    assert len(report["left_out"]) == 2
    plain, dart = report["measurements"]
    assert (plain["engine"], dart["engine"]) == (PLAIN, "dart")
    assert plain["tokens"] == dart["tokens"]
    assert np.shape(plain["tokens"]) == (4, NEW)
    assert len(dart["rates"]) == 2
    assert min(plain["rates"] + dart["rates"]) > 0
    assert "4/4" in printed.getvalue()


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("kind", ["directory", "GGUF"])
def test_same_tokens(kind, tiny, tmp_path):
    target = tiny.target if kind == "directory" else tiny_gguf(tmp_path, "Llama")
    prompts = tiny.prompts if kind == "directory" else [np.arange(3, 20, dtype=np.int32)]
    assert decode(target, "transformers", prompts) == decode(target, PLAIN, prompts)


def test_an_engine_that_cannot_run(tiny):
    with pytest.raises(UserError, match=r"^needs a DART drafter; pass it as --drafter$"):
        decode(tiny.target, "dart", [])
    with pytest.raises(UserError, match="reads GGUF targets only"):
        decode(tiny.target, "llama.cpp", [])
