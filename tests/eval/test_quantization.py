"""eval.quantization: its figures, and the report it writes."""

import io
import json

import numpy as np
import pytest
import tiny_model
from rich.console import Console

from dart_jax import _core
from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.model import DEMO, DartModel
from eval.quantization import QuantizationConfig, compare, run

# A CPU's own form, in groups of 64; on a mesh that of accelerators, with a scale for each output.
native = pytest.param(
    None,
    marks=pytest.mark.skipif(not _core.cpu_ffi_handlers, reason="it needs the C++ core's products"),
)
forms = pytest.mark.parametrize("mesh", [native, "model=1"])


@pytest.mark.long
@forms
def test_report(tmp_path, mesh):
    path, printed = tmp_path / "report.json", io.StringIO()
    config = QuantizationConfig(model="demo", mesh=mesh, held_out=100, json=path)
    run(config, Console(file=printed, width=120))
    report = json.loads(path.read_text())
    assert "int8 beside stored weights, 100 tokens" in printed.getvalue()
    stored, rounded = report["size"]
    assert rounded < 0.7 * stored
    assert report["same_token"] > 0.9
    assert 0 < report["divergence"] < 0.01
    one, other = report["perplexity"]
    assert one == pytest.approx(other, rel=0.02)


def test_a_model_agrees_with_itself(tmp_path_factory):
    model = DartModel.from_pretrained(tiny_model.make(tmp_path_factory.getbasetemp()).target)
    tokens = np.arange(20, dtype=np.int32)
    predictions = compare(model, model, [tokens, tokens[::-1].copy()])
    assert (predictions["same_token"], predictions["divergence"]) == (1, 0)
    one, other = predictions["perplexity"]
    assert one == other > 1


@pytest.mark.long
@forms
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafting_changes_nothing(demo_drafters, temperature, mesh):
    """With weights in 8 bits, for every kind of drafter; target and drafter are rounded."""
    paths = {"drafter": DEMO / "drafter", "ngram": DEMO / "ngram.dng"}
    model = DartModel.from_pretrained(DEMO / "target", **paths, weights_dtype="int8", mesh=mesh)
    kernel = model.params["drafter"]["lm_head"]["kernel"]
    assert (kernel.parts[0].dtype == np.uint8) if mesh is None else kernel.values.dtype == np.int8
    texts = ["def mean(values):", "import os\n\n\nclass Files"]
    prompts = [np.asarray(model.tokenizer.encode(text), np.int32) for text in texts]
    answers = []
    drafters = [None, model.drafter, NgramConfig(), PromptLookupConfig()]
    for drafter in [*drafters, demo_drafters["eagle3"], demo_drafters["draft_model"]]:
        method = model if drafter is model.drafter else model.with_drafter(drafter)
        sampling, nodes = Sampling(temperature=temperature), 6 * (drafter is not None)
        decoder = method.decoder(nodes=nodes, max_length=64, sampling=sampling)
        answers.append([row.tolist() for row in decoder(prompts, 32, seed=3).tokens])
    assert all(answer == answers[0] for answer in answers)
