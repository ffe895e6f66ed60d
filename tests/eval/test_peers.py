"""eval.peers: the report, the engines' tokens, and engines that cannot run."""

import dataclasses
import importlib.util
import io
import itertools
import json
import re

import numpy as np
import pytest
import tiny_model
from gguf_files import no_meaning, tiny_gguf
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.files import user_cache
from dart_jax.machine import available_cores
from dart_jax.model import DEMO
from dart_jax.models.config import TargetConfig
from dart_jax.models.kernels.tiles import BLOCK_TYPES
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_target
from dart_jax.weights.gguf.tensors import INDEX, open_gguf
from dart_jax.weights.layouts import leaves
from eval.latency.shapes import target_of
from eval.peers import own
from eval.peers.config import PeersConfig
from eval.peers.engine import ENGINES, LLAMA, PLAIN, Setup, whole
from eval.peers.llama_cpp import quantize
from eval.peers.program import Peer, run, targets
from eval.peers.random_target import write_random

LENGTH, NEW = 64, 6
WIDE = TargetConfig(
    vocab_size=4160,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rms_norm_eps=float(np.float32(1e-6)),  # as files have it
)
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
        return [peer.decode(prompt, NEW)[0] for prompt in PROMPTS]


@pytest.mark.long
def test_report(tiny, tmp_path, monkeypatch):
    """Plain decoding and DART; an engine that is not installed; one that cannot take the target."""
    absent = ENGINES["transformers"]._replace(packages={"no-such": "no_such_package"})
    monkeypatch.setitem(ENGINES, "transformers", absent)
    present = ENGINES[LLAMA]._replace(packages={})
    monkeypatch.setitem(ENGINES, LLAMA, present)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "def f(x):"}\n{"prompt": "import os"}\n')
    config = PeersConfig(
        target=str(tiny.target),
        drafter=str(tiny.drafter),
        ngram=str(tiny.ngram),
        engine=("transformers", LLAMA, "dart"),
        bench=str(questions),
        new_tokens=NEW,
        repeats=2,
        tree_nodes=3,
        threads=(1,),
        json=tmp_path / "report.json",
    )
    printed = io.StringIO()
    run(config, Console(file=printed, width=120))
    assert "left out: PyTorch: not installed: pip install no-such\n" in printed.getvalue()
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


@pytest.mark.long
@pytest.mark.parametrize("kind", ["GGUF", "directory"])
def test_same_tokens(kind, tiny, tmp_path):
    """Of all engines that are installed and take the target."""
    target, names = tiny.target, ["transformers", "lookup"]
    if kind == "GGUF":
        tokenizer = no_meaning(61)  # llama.cpp needs a merge
        tokenizer["tokenizer.ggml.tokens"][:3] = "a", "b", "ab"
        tokenizer["tokenizer.ggml.merges"] = ["a b"]
        target, names = tiny_gguf(tmp_path, "Llama", tokenizer=tokenizer), [*names, LLAMA]
    packages = {name: ENGINES[name].packages.values() for name in names}
    names = [name for name in names if all(map(importlib.util.find_spec, packages[name]))]
    if not names:
        pytest.skip("no other engine is installed")
    expected = texts(target, tmp_path, PLAIN)
    assert {name: texts(target, tmp_path, name) for name in names} == dict.fromkeys(names, expected)


@pytest.mark.long
def test_made_targets(tmp_path):
    """Random weights in two types, on one core and on two; nothing stays behind."""
    pytest.importorskip("llama_cpp")
    config = PeersConfig(
        shape="demo",
        quantize=("Q4_0", "Q4_K"),
        engine=(LLAMA,),
        prompts=1,
        new_tokens=NEW,
        repeats=1,
        threads=(1, min(2, available_cores())),
        json=tmp_path / "report.json",
    )
    kept = set((user_cache() / "gguf").glob(f"*/{INDEX}"))
    run(config, Console(file=io.StringIO()))
    new = set((user_cache() / "gguf").glob(f"*/{INDEX}")) - kept
    assert not [path for path in new if re.search(r"/(Q4_0|random)\.gguf", path.read_text())]
    report = json.loads(config.json.read_text())
    assert report["left_out"] == []
    found = [(each["target"], each["threads"], each["engine"]) for each in report["measurements"]]
    types = "demo in Q4_0", "demo in Q4_K"
    assert found == [*itertools.product(types, config.threads, (PLAIN, LLAMA))]
    # Of the other type, as the demo's 320 inputs are no multiple of 256.
    assert {each["weights"] for each in report["measurements"]} == {"Q4_0", "Q5_0"}
    assert min(each["rates"][0] for each in report["measurements"]) > 0


@pytest.mark.parametrize("type", sorted(BLOCK_TYPES))
def test_quantized(type, tmp_path):
    """Every matrix of the file has the type, and values as near as its steps are fine."""
    pytest.importorskip("llama_cpp")
    path, other = tmp_path / "wide.gguf", tmp_path / "other.gguf"
    write_random(path, WIDE, Console(file=io.StringIO()))
    quantize(path, other, type, 1)
    (_, exact), (_, rounded) = (open_gguf(hub.resolve(each, patterns=())) for each in (path, other))
    assert exact.keys() == rounded.keys()
    for name, tensor in exact.items():
        values, near = tensor.read().astype(np.float32), rounded[name].read()
        if values.ndim == 1:
            np.testing.assert_array_equal(near, values)
            continue
        assert rounded[name].blocks.type == type
        # Blocks of 32 normal values lie within 4 standard deviations or so.
        step = 2 * 4 / 2 ** int(type[1])
        assert 0 < np.std(near - values) / np.std(values) < step / 2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_random_target(kind, tied, tmp_path):
    config = dataclasses.replace(WIDE, model_type=kind, tie_word_embeddings=tied)
    write_random(tmp_path / "wide.gguf", config, Console(file=io.StringIO()))
    directory = hub.resolve(tmp_path / "wide.gguf", patterns=hub.TARGET)
    loaded, params = load_target(directory)
    assert loaded == config
    assert Tokenizer.load(directory).vocab_size == Tokenizer.load(DEMO / "target").vocab_size
    seen = set()
    for path, leaf in leaves(params):
        if path[-1] == "scale":
            assert (leaf == 1).all()
            continue
        assert abs(np.std(leaf) / 0.02 - 1) < 0.05, path
        seen.add(float(leaf[0, 0]))
    assert len(seen) == 7 * config.num_hidden_layers + 1 + (not tied)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "llama-3.1-70b"])
def test_shapes_that_files_are_not_made_of(name, tmp_path):
    with pytest.raises(UserError, match="none with experts or with scaled frequencies"):
        write_random(tmp_path / "wide.gguf", target_of(name), Console())
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": ("Q9_0",)}, r"^no type 'Q9_0'; pass some of Q4_0, "),
        ({"shape": "qwen3-0.6c"}, r"^no shape 'qwen3-0.6c'"),
        ({"shape": "demo", "model": "demo"}, r"^--shape brings its own target"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(UserError, match=message):
        PeersConfig(**options)


def test_only_gguf_targets_are_quantized(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(ENGINES, LLAMA, ENGINES[LLAMA]._replace(packages={}))
    config = PeersConfig(target=str(tiny.target), quantize=("Q4_0",))
    with pytest.raises(UserError, match=r"^--quantize takes GGUF targets; "):
        next(targets(config, tmp_path, Console()))


def test_without_a_drafter(tiny, tmp_path):
    with pytest.raises(UserError, match=r"^needs a DART or block drafter; pass it as --drafter$"):
        own.load(setup(tiny.target, tmp_path, "dart", threads=999))


def test_time_of_one_token_is_subtracted(monkeypatch):
    clock = iter([1.0, 3.0, 10.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    lengths = []

    def generate(prompt, new_tokens):
        lengths.append(new_tokens)
        return list(range(new_tokens))

    assert whole(generate)(np.arange(3), NEW) == (list(range(NEW)), (10 - 3) - (3 - 1))
    assert lengths == [1, NEW]
