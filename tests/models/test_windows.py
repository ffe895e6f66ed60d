"""Sliding windows and what else the target does by position, on our own configs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_configs import TARGET, VOCABULARY, random_params

from dart_jax.models.pure import bind
from dart_jax.models.rope import Rope
from train.data.batch import causal, positions

WINDOW = 5
GEMMA = dataclasses.replace(
    TARGET,
    model_type="gemma3_text",
    hidden_act="gelu_pytorch_tanh",
    sliding_window=WINDOW,
    sliding_layers=(0, 1, 3, 4, 6),
    sliding_rope=Rope(100.0),
    final_logit_softcapping=3.0,
)


@functools.partial(jax.jit, static_argnums=0)
def forward(config, params, tokens, at, mask, cache=None, length=None):
    return bind(config, params)(tokens, at, mask, cache, length)


def test_packed_documents_are_computed_as_if_alone():
    """Training packs documents into rows; windows count positions within a document."""
    config = dataclasses.replace(GEMMA, num_hidden_layers=2, sliding_layers=(0,))
    params = random_params(config, 0)
    documents = [np.random.default_rng(i).integers(0, VOCABULARY, 11) for i in range(2)]
    tokens = jnp.asarray(np.concatenate(documents)[None], jnp.int32)
    document = jnp.repeat(jnp.arange(2, dtype=jnp.int32), 11)[None]
    packed = forward(config, params, tokens, positions(document), causal(document)).hidden
    start = 0
    for text in documents:
        n = len(text)
        at = jnp.arange(n, dtype=jnp.int32)[None]
        mask = jnp.tril(jnp.ones((1, n, n), bool))
        alone = forward(config, params, jnp.asarray(text[None], jnp.int32), at, mask).hidden
        np.testing.assert_allclose(packed[:, start : start + n], alone, rtol=0, atol=1e-4)
        start += n


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_drafters_share_the_embeddings_before_the_targets_factor(dtype):
    params = jax.tree.map(lambda x: x.astype(dtype), random_params(GEMMA, 0))
    target = bind(GEMMA, params)
    tokens = jnp.array([[3, 1, 4]], jnp.int32)
    embedded = target.embed(tokens)
    np.testing.assert_array_equal(embedded, params["embed_tokens"][tokens])
    # Layers that add nothing pass their input on to the features.
    silent = jax.tree.map_with_path(
        lambda path, x: x if path[0].key == "embed_tokens" else jnp.full_like(x, -1), params
    )
    for layer in silent["layers"].values():
        for module, name in (("self_attn", "o_proj"), ("mlp", "down_proj")):
            layer[module][name]["kernel"] = jnp.zeros_like(layer[module][name]["kernel"])
    at = jnp.arange(3, dtype=jnp.int32)[None]
    out = forward(GEMMA, silent, tokens, at, jnp.tril(jnp.ones((1, 3, 3), bool)))
    scaled = embedded * jnp.asarray(GEMMA.hidden_size**0.5, dtype)
    np.testing.assert_array_equal(out.features, jnp.concatenate([scaled] * 3, axis=-1))
