"""Sliding windows and what else the target does by position, on our own configs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from tiny_configs import TARGET, VOCABULARY, random_params

from dart_jax.models.networks.pure import bind
from dart_jax.models.rope import Rope
from train.data.batch import causal, positions

GEMMA = dataclasses.replace(
    TARGET,
    model_type="gemma3_text",
    hidden_act="gelu_pytorch_tanh",
    num_hidden_layers=2,
    sliding_window=5,
    sliding_layers=(0,),
    sliding_rope=Rope(100.0),
    final_logit_softcapping=3.0,
)


def test_packed_documents_are_computed_as_if_alone():
    """Training packs documents into rows; windows count positions within a document."""
    params, documents = random_params(GEMMA, 0), jnp.arange(2, dtype=jnp.int32)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (2, 11)).astype(np.int32)

    @jax.jit
    def hidden(tokens, document):
        return bind(GEMMA, params)(tokens, positions(document), causal(document)).hidden

    packed = hidden(tokens.reshape(1, 22), jnp.repeat(documents, 11)[None])
    alone = hidden(tokens, jnp.ones((2, 11), jnp.int32))
    np.testing.assert_allclose(packed.reshape(alone.shape), alone, rtol=0, atol=1e-4)


def test_drafters_share_the_embeddings_before_the_targets_factor():
    params = random_params(GEMMA, 0)
    tokens = jnp.array([[3, 1, 4]], jnp.int32)
    np.testing.assert_array_equal(bind(GEMMA, params).embed(tokens), params["embed_tokens"][tokens])
