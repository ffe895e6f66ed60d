"""eval.peers: the table, the reports, and what is said of engines that do not run."""

import dataclasses
import io
import json

import gguf
import numpy as np
import pytest
import tiny_model
from gguf_files import tiny_gguf
from rich.console import Console

from dart_jax.weights import hub
from dart_jax.weights.gguf.tensors import gguf_files
from dart_jax.weights.tensor_files import open_tensors
from eval.peers.config import PeersConfig
from eval.peers.engine import Setup, Whole
from eval.peers.engines.gguf_file import most_common_type, write_gguf
from eval.peers.layout import transformers_directory
from eval.peers.measurement import Measurement
from eval.peers.program import run
from eval.peers.registry import ENGINES, PLAIN
from eval.peers.report import agreement
from eval.peers.worker import EngineError, Worker

LENGTH, NEW = 64, 6
# Without `compiled`, which would compile for half a minute.
OTHERS = [name for name in ENGINES if name not in (PLAIN, "dart", "compiled")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


def setup(tiny, work, name, precision="float32", **settings):
    config = PeersConfig(target=str(tiny.target), engine=(name,), **settings)
    return Setup(config, tiny.target, work, name, precision, 1, LENGTH)


def installed(name):
    return pytest.mark.skipif(bool(ENGINES[name].missing), reason=f"{name} is not installed")


@pytest.fixture(scope="module")
def plain(tiny, tmp_path_factory):
    """What plain decoding continues the prompts with."""
    with Worker(setup(tiny, tmp_path_factory.mktemp("plain"), PLAIN)) as worker:
        return [worker.decode(prompt, NEW).tokens for prompt in tiny.prompts]


@pytest.mark.long
def test_report(tiny, tmp_path, monkeypatch):
    """Plain decoding and DART; an engine that is not installed; one that cannot run."""
    absent = dataclasses.replace(ENGINES["ctranslate2"], packages={"no-such": "no_such_package"})
    monkeypatch.setitem(ENGINES, "ctranslate2", absent)
    config = PeersConfig(
        target=str(tiny.target),
        drafter=str(tiny.drafter),
        ngram=str(tiny.ngram),
        engine=("ctranslate2", "dart"),
        prompts=1,
        new_tokens=NEW,
        repeats=2,
        threads=1,
        json=tmp_path / "report.json",
    )
    shown = io.StringIO()
    run(config, Console(file=shown, width=120))
    assert "left out: CTranslate2 is not installed: pip install no-such\n" in shown.getvalue()
    report = json.loads(config.json.read_text())
    assert len(report["left_out"]) == 1
    assert [each["engine"] for each in report["measurements"]] == ["plain", "dart"]
    prompts = len(report["measurements"][0]["same"])
    assert prompts >= 1
    for each in report["measurements"]:
        assert each["same"] == [NEW] * prompts
        assert np.shape(each["seconds"]) == np.shape(each["cpu_seconds"]) == (2, prompts)
        assert np.min(each["seconds"]) > 0
        assert len(each["rates"]) == len(each["ratios"]) == 2
    assert f"{prompts}/{prompts}" in shown.getvalue()
    assert sorted(tmp_path.iterdir()) == [config.json]


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(each, marks=installed(each)) for each in OTHERS])
def test_same_tokens(name, tiny, plain, tmp_path):
    options = {"draft_model": str(tiny.target)} if name == "assisted" else {}
    with Worker(setup(tiny, tmp_path, name, **options)) as worker:
        assert worker.precision == "float32"
        for prompt, tokens in zip(tiny.prompts, plain, strict=True):
            decoded = worker.decode(prompt, NEW)
            assert decoded.tokens == tokens
            assert decoded.seconds >= 0 <= decoded.cpu_seconds


@pytest.mark.long
def test_an_engine_that_cannot_run(tiny, tmp_path):
    with pytest.raises(EngineError, match=r"^needs a DART drafter; pass it as --drafter$"):
        Worker(setup(tiny, tmp_path, "dart"))


def test_an_engine_that_ends(tiny, tmp_path):
    with Worker(setup(tiny, tmp_path, PLAIN)) as worker:
        worker._process.kill()
        with pytest.raises(EngineError, match=r"^its process ended with status -9: no output$"):
            worker.decode(tiny.prompts[0], NEW)


def test_time_of_one_token_is_subtracted():
    asked = []

    def generate(prompt, new_tokens):
        asked.append(new_tokens)
        return list(range(new_tokens))

    decoded = Whole("float32", generate).decode(np.arange(3), NEW)
    assert asked == [1, NEW]
    assert decoded.tokens == list(range(NEW))
    assert decoded.seconds >= 0


def test_rates_and_agreement():
    plain = Measurement(
        "plain", "", {}, "", 1, 11, [[1.0, 3.0], [2.0, 2.0]], [[2.0, 2.0]] * 2, [11, 11]
    )
    other = dataclasses.replace(plain, seconds=[[2.0, 6.0], [1.0, 1.0]], same=[4, 11])
    assert plain.rates == [5.0, 5.0]
    assert other.ratios(plain) == [0.5, 2.0]
    assert agreement(plain) == "2/2"
    assert agreement(other) == "1/2 (5)"


def test_engines_are_chosen():
    config = PeersConfig(engine=("llama.cpp", "llama.cpp", "dart"))
    assert config.engines == (PLAIN, "llama.cpp", "dart")
    assert PeersConfig(threads=1).thread_choices == (1,)
    assert PeersConfig().thread_choices[0] == 1


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_gguf_file(precision, tiny, tmp_path):
    write_gguf(tmp_path / "model.gguf", tiny.target, precision)
    stored = {each.name: each for each in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    expected = open_tensors(tiny.target).tensors["model.layers.0.mlp.up_proj.weight"].read()
    tensor = stored["blk.0.ffn_up.weight"]
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(expected.shape)
    tolerance = {"float32": 0, "float16": 1e-3, "bfloat16": 1e-2}[precision]
    np.testing.assert_allclose(values, np.asarray(expected, np.float32), tolerance, tolerance)
    assert len(stored) == len(open_tensors(tiny.target).tensors)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """The directory of a GGUF target whose matrices have 8 bits."""
    kinds = {r"(ffn|attn)_\w+\.weight": gguf.GGMLQuantizationType.Q8_0}
    directory = tmp_path_factory.mktemp("quantized")
    return hub.resolve(tiny_gguf(directory, "Llama", kinds=kinds), patterns=hub.TARGET)


def values_of(directory):
    return {name: np.asarray(t.read()) for name, t in open_tensors(directory).tensors.items()}


def test_a_gguf_target_for_transformers(quantized, tmp_path):
    """Its values, dequantised; a directory in that layout stays what it is."""
    copy = transformers_directory(quantized, tmp_path / "copy")
    assert copy == tmp_path / "copy"
    assert sorted(path.name for path in copy.iterdir()) == sorted(
        {*(path.name for path in quantized.iterdir()), "model.safetensors"} - {"gguf.index.json"}
    )
    stored, copied = values_of(quantized), values_of(copy)
    assert stored.keys() == copied.keys()
    for name, values in stored.items():
        np.testing.assert_array_equal(copied[name], values)
    assert transformers_directory(copy, tmp_path / "another") == copy
    assert [*tmp_path.iterdir()] == [copy]


def test_a_gguf_target_in_another_precision(quantized, tmp_path):
    """The file has the same values, and everything else that the first one says."""
    assert most_common_type(gguf_files(quantized)[0]) == "Q8_0"
    write_gguf(tmp_path / "whole.gguf", quantized, "float32")
    whole = hub.resolve(tmp_path / "whole.gguf", patterns=hub.TARGET)
    assert most_common_type(tmp_path / "whole.gguf") == "F32"
    stored, written = values_of(quantized), values_of(whole)
    assert stored.keys() == written.keys()
    for name, values in stored.items():
        np.testing.assert_array_equal(written[name], values)
    for name in ("config.json", "tokenizer.json"):
        assert (whole / name).read_text() == (quantized / name).read_text()
