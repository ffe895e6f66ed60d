"""eval.quantization: its figures, and the report it writes."""

import io
import json

import numpy as np
import pytest
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


@pytest.mark.long(ci=1)
@forms
def test_report(tmp_path, mesh):
    path, printed = tmp_path / "report.json", io.StringIO()
    size = {"prompts": 1, "max_new_tokens": 12, "held_out": 100}
    config = QuantizationConfig(model="demo", mesh=mesh, **size, json=path)
    run(config, Console(file=printed, width=120))
    report = json.loads(path.read_text())
    assert "int8 beside stored weights, greedy, 4 prompts" in printed.getvalue()
    stored, rounded = report["size"]
    assert rounded < 0.7 * stored
    assert report["identical"] == [4, 4]  # of any model, drafting changes nothing
    assert min(report["tau"]) > 1
    assert report["same_token"] > 0.9
    assert 0 < report["divergence"] < 0.01
    one, other = report["perplexity"]
    assert one == pytest.approx(other, rel=0.02)


def test_a_model_agrees_with_itself():
    model, tokens = DartModel.demo(), np.arange(20, dtype=np.int32)
    predictions = compare(model, model, [tokens, tokens[:7]])
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
    assert (kernel if mesh is None else kernel.values).dtype == np.int8
    options = {"max_new_tokens": 48, "temperature": temperature, "seed": 3}
    prompts = ["def mean(values):", "import os\n\n\nclass Files"]
    drafters = [model.drafter, demo_drafters["eagle3"], demo_drafters["draft_model"]]
    plain = [model.with_drafter(None).generate(prompt, **options).text for prompt in prompts]
    for drafter in drafters:
        method = model if drafter is model.drafter else model.with_drafter(drafter)
        assert [method.generate(prompt, **options).text for prompt in prompts] == plain


@pytest.mark.long(ci=1)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_methods_emit_what_plain_decoding_does(demo_drafters, temperature):
    """With a scale for each output, for methods with and without parameters."""
    paths = {"drafter": DEMO / "drafter", "ngram": DEMO / "ngram.dng"}
    options = {"weights_dtype": "int8", "mesh": "model=1"}
    model = DartModel.from_pretrained(DEMO / "target", **paths, **options)
    texts = ["def mean(values):", "import os\n\n\nclass Files"]
    prompts = [np.asarray(model.tokenizer.encode(text), np.int32) for text in texts]
    drafters = [None, model.drafter, NgramConfig(), PromptLookupConfig()]
    drafters += [demo_drafters["eagle3"], demo_drafters["draft_model"]]
    found = {}
    for drafter in drafters:
        method = model if drafter is model.drafter else model.with_drafter(drafter)
        decoder = method.decoder(
            nodes=0 if drafter is None else 6,
            max_length=64,
            sampling=Sampling(temperature=temperature),
        )
        made = decoder(prompts, 32, seed=3)
        found[str(drafter)] = [row.tolist() for row in made.tokens]
    assert all(tokens == found["None"] for tokens in found.values())
