"""Parity with transformers: random models of every architecture, both ways; logits filters."""

import copy
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from decoding import Prompts, generate
from transformers_models import MODELS, make, torch

from dart_jax.decoding.logits import penalize_repetition
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.sampling import filter_logits
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.tree import DraftTree, ancestor_mask
from dart_jax.models.attention.compaction import extend
from dart_jax.models.cache import init_cache
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.networks.pure import bind
from dart_jax.models.networks.sizes import weight_bytes
from dart_jax.weights.checkpoint import load_target, save_target

LENGTH = 25
# Fields of the file, and those of which the consequences are written for every layer.
UNWRITTEN = {
    "rope_parameters",
    "architectures",
    "dtype",
    "max_window_layers",
    "no_rope_layer_interval",
    "sliding_window_pattern",
}
# One of every kind of layer: two ropes, windows in some and in all layers, capped scores, experts.
DRAFTING = (
    "Gemma 3",
    "Gemma 2",
    "Qwen3, biases and windows",
    "Mistral",
    "Phi-3, longrope",
    "Granite",
    "OLMo 3",
    "Qwen2-MoE",
)


@pytest.fixture(scope="module", params=MODELS)
def theirs(request):
    """One of the models."""
    return make(request.param)


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory):
    """The same model, read from the shards that transformers writes."""
    directory = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(directory, max_shard_size="60KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 2
    return load_target(directory)


@pytest.fixture(scope="module")
def tokens(theirs):
    """Two rows of LENGTH tokens."""
    vocab = theirs.config.vocab_size
    return np.random.default_rng(1).integers(0, vocab, (2, LENGTH)).astype(np.int32)


@pytest.fixture(scope="module")
def expected(theirs, tokens):
    """The output of transformers, in one forward."""
    with torch.no_grad():
        return theirs(torch.from_numpy(tokens).long(), output_hidden_states=True)


@pytest.fixture(scope="module")
def prefilled(ours, tokens):
    """Our forward over all tokens at once: logits, features, and keys and values."""
    return prefill(*ours, tokens)


def prefill(config, params, tokens, options=LayerOptions()):
    @jax.jit
    def run(params, tokens):
        target = bind(config, params, options)
        at = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32)[None], tokens.shape)
        out = target(tokens, at, jnp.tril(jnp.ones((1, LENGTH, LENGTH), bool)))
        return target.logits(out.hidden), out.features, out.rows

    return run(params, tokens)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_bytes_of_the_weights(ours):
    """As they are counted before any is read, from two layers."""
    config, params = ours
    assert weight_bytes(config, np.float32) == sum(leaf.nbytes for leaf in jax.tree.leaves(params))


@pytest.mark.long(keep=4)
def test_logits_and_features_of_a_prefill(expected, ours, prefilled):
    logits, features, _ = prefilled
    close(logits, expected.logits.numpy())
    entering = [expected.hidden_states[layer] for layer in ours[0].feature_layers]
    close(features, torch.cat(entering, -1).numpy())


def enlarge(model):
    """Scales weights until the residual stream exceeds what float16 can hold."""
    names = dict(model.named_parameters())
    only_after = not any("input_layernorm" in name for name in names)
    with torch.no_grad():
        for name, weight in names.items():
            if re.search(r"down_proj|\.w2\.", name):
                weight.mul_(4e4 / weight.abs().max())
            if "post_feedforward_layernorm" in name:
                weight.fill_(4e4)
            # Without norms before them, products read the residual stream itself.
            if only_after and re.search("(gate|up|v)_proj", name):
                weight.mul_(1e-3)


@pytest.mark.long(keep=4)
@pytest.mark.parametrize("large", [False, True], ids=["", "large"])
def test_float16_is_close_to_float32(theirs, tokens, tmp_path, large):
    """Products are rounded to 11 bits; a residual stream beyond 65,504 does no harm."""
    theirs = copy.deepcopy(theirs)
    if large:
        enlarge(theirs)
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens).long(), output_hidden_states=True)
    assert (max(x.abs().max() for x in expected.hidden_states) > 65_504) == large
    config, params = load_target(tmp_path, "float16")
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {"float16", "float32"}
    logits, features, rows = prefill(config, params, tokens, LayerOptions(kv="float16"))
    assert features.dtype == jnp.float32
    assert {x.dtype.name for x in jax.tree.leaves(rows)} == {"float16"}
    want = expected.logits.numpy()
    # The median: in mixtures a few rows may take other experts.
    error = np.sqrt(np.median(np.mean((logits - want) ** 2, axis=-1)))
    assert error < 2**-7 * want.std()


@pytest.mark.long(keep=2)
def test_logits_of_a_tree(theirs, ours, prefilled, tokens):
    """Every path, after a cached prefix that is longer in one row."""
    config, params = ours
    parents, depth = [0, 0, 0, 1, 3, 2, 4], [0, 1, 1, 2, 3, 2, 4]
    nodes = np.random.default_rng(2).integers(0, config.vocab_size, (2, 7)).astype(np.int32)
    tree = DraftTree(nodes, *jnp.array([[parents] * 2, [depth] * 2], jnp.int32))
    shape = 2, config.num_key_value_heads, LENGTH, config.head_dim
    cache = init_cache(config.num_hidden_layers, *shape, jnp.float32)
    cache = extend(cache, prefilled[2], jnp.zeros(2, jnp.int32))
    length = np.array([LENGTH - 1, 12], np.int32)

    @jax.jit
    def verify(params, tree, cache, length):
        target = bind(config, params)
        mask = ancestor_mask(tree, 4)
        out = target(tree.tokens, length[:, None] + tree.depth, mask, cache, length)
        return target.logits(out.hidden)

    logits = verify(params, tree, cache, length)
    for node in range(7):
        path = [node]
        while path[0]:
            path.insert(0, parents[path[0]])
        for row, at in enumerate(length):
            text = np.concatenate([tokens[row, :at], nodes[row, path]])
            with torch.no_grad():
                want = theirs(torch.from_numpy(text[None]).long()).logits[0, -1]
            close(logits[row, node], want.numpy())


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("theirs", DRAFTING, indirect=True)
def test_drafting_emits_what_transformers_generates(theirs, ours, tokens):
    """The target drafts for itself, so every path is accepted, through its windows as well."""
    config, params = ours
    parts = DecodeConfig(config, config, nodes=4), {"target": params, "drafter": params}, None
    with torch.no_grad():
        expected = theirs.generate(
            torch.from_numpy(tokens).long(), max_new_tokens=20, do_sample=False
        )
    generation = generate(*parts, Prompts.pad(list(tokens), 20, LENGTH + 20))
    np.testing.assert_array_equal(generation.tokens, expected[:, LENGTH:].numpy())
    # The prefill emits one token and each step five: up to four drafted ones and the next.
    np.testing.assert_array_equal(generation.steps, 4)


def covers(after, before):
    """Checks nested parameters: files say what transformers leaves at its defaults, too."""
    return all(
        covers(after[name], value) if isinstance(value, dict) else after[name] == value
        for name, value in before.items()
    )


@pytest.mark.long(keep=3)
@pytest.mark.parametrize(
    ("dtype", "shard"), [("float32", 10**9), ("bfloat16", 20_000)], ids=["float32", "shards"]
)
def test_transformers_reads_back_the_same_model(theirs, ours, tmp_path, dtype, shard):
    """The same bits, and every field of the config."""
    config, params = ours
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    save_target(tmp_path, config, params, max_shard_size=shard)
    assert (tmp_path / "model.safetensors").is_file() == (shard == 10**9)
    loaded: Any = type(theirs).from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    again, report = loaded
    assert not any(report.values())
    assert again.dtype == getattr(torch, dtype)
    expected = {name: x.to(again.dtype) for name, x in theirs.state_dict().items()}
    assert again.state_dict().keys() == expected.keys()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    before, after = theirs.config.to_dict(), again.config.to_dict()
    assert covers(after["rope_parameters"], before["rope_parameters"])
    for name in before.keys() - UNWRITTEN:
        assert name.startswith("_") or after[name] == before[name], name


@pytest.mark.parametrize("name", ["Qwen3-MoE, some dense", "Mixtral"])
def test_fused_experts_are_the_same_experts(name, tmp_path):
    model = make(name)
    model.save_pretrained(tmp_path / "fused", save_original_format=False)
    model.save_pretrained(tmp_path / "apart")
    fused, apart = load_target(tmp_path / "fused"), load_target(tmp_path / "apart")
    assert fused[0] == apart[0]
    jax.tree.map(np.testing.assert_array_equal, fused[1], apart[1])


@pytest.mark.parametrize("sampling", [Sampling(0.8, 20, 0.9), Sampling(1.2, 30, 0.95, min_p=0.1)])
def test_filters_are_those_of_transformers(sampling):
    logits = np.random.default_rng(2).normal(0, 3, (200, 50)).astype(np.float32)
    warpers: list = [
        transformers.TemperatureLogitsWarper(sampling.temperature),
        transformers.TopKLogitsWarper(sampling.top_k),
        transformers.TopPLogitsWarper(sampling.top_p),
    ]
    if sampling.min_p:
        warpers.append(transformers.MinPLogitsWarper(sampling.min_p))
    scores = torch.from_numpy(logits)
    for warper in warpers:
        scores = warper(None, scores)
    kept = filter_logits(sampling.values(), jnp.asarray(logits) / sampling.temperature)
    np.testing.assert_array_equal(np.isfinite(kept), np.isfinite(scores.numpy()))
    np.testing.assert_allclose(kept, scores.numpy(), rtol=1e-6)


@pytest.mark.parametrize("penalty", [0.8, 1.3])
def test_the_repetition_penalty_is_that_of_transformers(penalty):
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (20, 50)).astype(np.float32)
    tokens = rng.integers(0, 50, (20, 12))
    seen = np.zeros((20, 50), bool)
    np.put_along_axis(seen, tokens, True, axis=1)
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.from_numpy(tokens), torch.from_numpy(logits.copy())).numpy()
    ours = penalize_repetition(jnp.float32(penalty), jnp.asarray(logits), jnp.asarray(seen))
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
