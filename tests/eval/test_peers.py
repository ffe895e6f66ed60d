"""eval.peers: the report, the engines' tokens, and engines that cannot run."""

import importlib.util
import io
import json

import gguf
import numpy as np
import pytest
import tiny_model
from gguf_files import no_meaning, tiny_gguf
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.weights import hub
from eval.peers.engine import ENGINES, PLAIN, Setup, whole
from eval.peers.program import Peer, PeersConfig, run

LENGTH, NEW = 64, 6
PROMPTS = [np.arange(3, 20, dtype=np.int32), np.arange(40, 49, dtype=np.int32)]
# Without `compiled`, which would compile for half a minute.
OTHERS = [name for name in ENGINES if name not in (PLAIN, "dart", "compiled")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


def write_target(directory, **options):
    """Writes a GGUF target; llama.cpp needs a merge."""
    tokenizer = no_meaning(61)
    tokenizer["tokenizer.ggml.tokens"][:3] = "a", "b", "ab"
    tokenizer["tokenizer.ggml.merges"] = ["a b"]
    return tiny_gguf(directory, "Llama", tokenizer=tokenizer, **options)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A GGUF target in float32."""
    return write_target(tmp_path_factory.mktemp("gguf"))


def setup(target, work, name, draft_model=None, precision="float32"):
    choice = ModelChoice(target=str(target), dtype="float32")
    directory = hub.resolve(target, patterns=hub.TARGET)
    return Setup(name, precision, choice, directory, draft_model, None, 1, LENGTH, work)


def texts(setup):
    with Peer(setup) as peer:
        return [peer.decode(prompt, NEW)[0] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain(target, tmp_path_factory):
    """The continuations by plain decoding."""
    return texts(setup(target, tmp_path_factory.mktemp("plain"), PLAIN))


@pytest.mark.long
def test_report(tiny, tmp_path, monkeypatch):
    """Plain decoding and DART; an engine that is not installed; one that cannot take the target."""
    absent = ENGINES["transformers"]._replace(packages={"no-such": "no_such_package"})
    monkeypatch.setitem(ENGINES, "transformers", absent)
    present = ENGINES["llama.cpp"]._replace(packages={})
    monkeypatch.setitem(ENGINES, "llama.cpp", present)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "def f(x):"}\n{"prompt": "import os"}\n')
    config = PeersConfig(
        target=str(tiny.target),
        drafter=str(tiny.drafter),
        ngram=str(tiny.ngram),
        engine=("transformers", "llama.cpp", "dart"),
        bench=str(questions),
        new_tokens=NEW,
        repeats=2,
        tree_nodes=3,
        threads=1,
        json=tmp_path / "report.json",
    )
    printed = io.StringIO()
    run(config, Console(file=printed, width=120))
    assert "left out: PyTorch is not installed: pip install no-such\n" in printed.getvalue()
    assert "left out: llama.cpp: reads GGUF targets only; " in printed.getvalue()
    assert "2/2" in printed.getvalue()
    report = json.loads(config.json.read_text())
    assert len(report["left_out"]) == 2
    ours, dart = report["measurements"]
    assert (ours["engine"], dart["engine"]) == (PLAIN, "dart")
    assert ours["tokens"] == dart["tokens"]
    assert np.shape(ours["tokens"]) == (2, NEW)
    assert dart["same"] == 2
    assert min(ours["rates"] + dart["rates"]) > 0
    assert dart["ratios"] == [a / b for a, b in zip(dart["rates"], ours["rates"], strict=True)]
    assert sorted(tmp_path.iterdir()) == [questions, config.json]


def has(name):
    return all(importlib.util.find_spec(module) for module in ENGINES[name].packages.values())


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_same_tokens(name, target, plain, tmp_path):
    if not has(name):
        pytest.skip(f"{name} is not installed")
    draft_model, precision = (
        str(target) if name == "assisted" else None,
        ENGINES[name].precisions[0],
    )
    assert texts(setup(target, tmp_path, name, draft_model, precision)) == plain


@pytest.mark.long
@pytest.mark.skipif(not has("llama.cpp"), reason="llama-cpp-python is not installed")
def test_llama_cpp_converts_a_target(tmp_path):
    """Weights in 8 bits become the floats that they stand for."""
    kinds = {r"(ffn|attn)_\w+\.weight": gguf.GGMLQuantizationType.Q8_0}
    target = write_target(tmp_path, kinds=kinds)
    floats = texts(setup(target, tmp_path, "llama.cpp"))
    assert floats == texts(setup(target, tmp_path, PLAIN))
    tensors = gguf.GGUFReader(tmp_path / "float32.gguf").tensors
    assert {each.tensor_type for each in tensors} == {gguf.GGMLQuantizationType.F32}


@pytest.mark.long
@pytest.mark.skipif(not has("transformers"), reason="torch is not installed")
def test_a_directory_of_transformers(tiny, tmp_path):
    expected = texts(setup(tiny.target, tmp_path, PLAIN))
    assert texts(setup(tiny.target, tmp_path, "transformers")) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dart", r"^needs a DART drafter; pass it as --drafter$"),
        ("assisted", r"^needs a small model; pass it as --draft-model$"),
    ],
)
def test_an_engine_without_its_part(name, message, tiny, tmp_path):
    with pytest.raises(UserError, match=message):
        Peer(setup(tiny.target, tmp_path, name))


def test_time_of_one_token_is_subtracted(monkeypatch):
    clock = iter([1.0, 3.0, 10.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    lengths = []

    def generate(prompt, new_tokens):
        lengths.append(new_tokens)
        return list(range(new_tokens))

    assert whole(generate)(np.arange(3), NEW) == (list(range(NEW)), (10 - 3) - (3 - 1))
    assert lengths == [1, NEW]
