"""eval.quantization: its figures, and the report it writes."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from dart_jax import _core
from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from dart_jax.model import DEMO, DartModel
from eval.quantization import QuantizationConfig, agreeing_tokens, compare, run

# A CPU's own form, in groups of 64; on a mesh that of accelerators, with a scale for each output.
native = pytest.param(
    None,
    marks=pytest.mark.skipif(not _core.cpu_ffi_handlers, reason="it needs the C++ core's products"),
)
forms = pytest.mark.parametrize("mesh", [native, "model=1"])


@pytest.mark.long(ci=1)
@forms
def test_report(tmp_path, mesh):
    config = QuantizationConfig(
        model="demo",
        mesh=mesh,
        prompts=1,
        max_new_tokens=12,
        held_out=100,
        json=tmp_path / "report.json",
    )
    shown = io.StringIO()
    run(config, Console(file=shown, width=120))
    report = json.loads(config.json.read_text())
    assert "int8 beside stored weights, greedy, 4 prompts" in shown.getvalue()
    assert "perplexity of held-out text" in shown.getvalue()
    stored, rounded = report["size"]
    assert rounded < 0.7 * stored
    for each in report["answers"]:
        assert each["identical"] == 4  # of any model, drafting changes nothing
        assert each["tau"] > 1
    assert len(report["agreeing"]) == 4
    for name in ("on_text", "on_answers"):
        assert report[name]["same"] > 0.9
        assert 0 < report[name]["divergence"] < 0.01
        assert 0 < report[name]["error"] < 0.02
    one, other = report["on_text"]["losses"]
    assert one == pytest.approx(other, rel=0.02)


def test_a_model_agrees_with_itself():
    model = DartModel.demo()
    tokens = np.arange(20, dtype=np.int32)
    found = compare(model, model, [(tokens, 1), (tokens, 7)])
    assert (found.same, found.divergence, found.error) == (1, 0, 0)
    assert found.losses[0] == found.losses[1] > 0


def test_agreeing_tokens():
    assert agreeing_tokens([1, 2, 3], [1, 2, 4]) == 2
    assert agreeing_tokens([1, 2], [1, 2, 3]) == 2
    assert agreeing_tokens([], [1]) == 0


def test_stored_weights_are_no_choice():
    with pytest.raises(UserError, match="compares a model with itself; pass int8"):
        run(QuantizationConfig(weights="stored"), Console(file=io.StringIO()))


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
def test_both_loops_emit_what_plain_decoding_does(demo_drafters, temperature):
    """With a scale for each output, for methods with and without parameters."""
    paths = {"drafter": DEMO / "drafter", "ngram": DEMO / "ngram.dng"}
    options = {"weights_dtype": "int8", "mesh": "model=1"}
    model = DartModel.from_pretrained(DEMO / "target", **paths, **options)
    texts = ["def mean(values):", "import os\n\n\nclass Files"]
    prompts = [np.asarray(model.tokenizer.encode(text), np.int32) for text in texts]
    drafters = [None, model.drafter, NgramConfig(), PromptLookupConfig()]
    drafters += [demo_drafters["eagle3"], demo_drafters["draft_model"]]
    found = {}
    for loop in ("fused", "host"):
        for drafter in drafters:
            method = model if drafter is model.drafter else model.with_drafter(drafter)
            decoder = method.decoder(
                nodes=0 if drafter is None else 6,
                max_length=64,
                sampling=Sampling(temperature=temperature),
                loop=loop,
            )
            made = decoder(prompts, 32, seed=3)
            found[loop, str(drafter)] = [row.tolist() for row in made.tokens]
    assert all(tokens == found["fused", "None"] for tokens in found.values())
