"""Against transformers: random Qwen3 models, there and back, and the logits filters."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.checkpoint import load_target, save_target
from dart_jax.pure import bind
from dart_jax.sampling import Sampling, keep_likely

if os.environ.get("DART_REQUIRE_PARITY") == "1":
    import torch
else:
    torch = pytest.importorskip("torch")
import transformers
from transformers.generation import logits_process

SHAPES = {
    "tied": {"tie_word_embeddings": True},
    "untied, one key head": {"num_key_value_heads": 1, "rope_theta": 1e4},
    "no sharing, odd sizes": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 10,
        "hidden_size": 28,
        "intermediate_size": 36,
        "num_hidden_layers": 8,
        "rms_norm_eps": 1e-5,
    },
}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=list(SHAPES))
def theirs(request):
    """A random model of transformers, with norms that are not 1."""
    shape = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape | request.param))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float("norm" in name), 0.2)
    return model.eval()


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory):
    """The same model, read from the files that transformers writes."""
    directory = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(directory)
    return load_target(directory)


def test_logits(theirs, ours):
    config, params = ours
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (2, 33)).astype(np.int32)

    @jax.jit
    def forward(params):
        target = bind(config, params)
        positions = jnp.broadcast_to(jnp.arange(33, dtype=jnp.int32)[None], tokens.shape)
        out = target(jnp.asarray(tokens), positions, jnp.tril(jnp.ones((1, 33, 33), bool)))
        return target.logits(out.hidden), out.features

    logits, features = forward(params)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens).long(), output_hidden_states=True)
    np.testing.assert_allclose(logits, expected.logits.numpy(), rtol=0, atol=1e-4)
    entering = [expected.hidden_states[layer] for layer in config.feature_layers]
    np.testing.assert_allclose(features, torch.cat(entering, -1).numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_reads_back_the_same_bits(theirs, ours, tmp_path, dtype):
    config, params = ours
    save_target(tmp_path, config, jax.tree.map(lambda x: x.astype(dtype), params))
    loaded: Any = transformers.Qwen3ForCausalLM.from_pretrained(
        tmp_path, dtype="auto", output_loading_info=True
    )
    again, report = loaded
    assert not any(report.values())
    assert again.dtype == getattr(torch, dtype)
    expected = {name: x.to(again.dtype) for name, x in theirs.state_dict().items()}
    assert again.state_dict().keys() == expected.keys()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    for field in ("rope_parameters", "rms_norm_eps", "head_dim", "tie_word_embeddings"):
        assert getattr(again.config, field) == getattr(theirs.config, field)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.7),
        Sampling(1.0, top_k=7),
        Sampling(1.0, top_p=0.9),
        Sampling(0.8, 20, 0.9),
        Sampling(1.5, 100, 0.01),
    ],
)
def test_filters_are_those_of_transformers(sampling):
    logits = np.random.default_rng(2).normal(0, 3, (200, 50)).astype(np.float32)
    warpers: list = [logits_process.TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k:
        warpers.append(logits_process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(logits_process.TopPLogitsWarper(sampling.top_p))
    scores = torch.from_numpy(logits)
    for warper in warpers:
        scores = warper(None, scores)
    kept = keep_likely(sampling, jnp.asarray(logits) / sampling.temperature)
    np.testing.assert_array_equal(np.isfinite(kept), np.isfinite(scores.numpy()))
    np.testing.assert_allclose(kept, scores.numpy(), rtol=1e-6)
