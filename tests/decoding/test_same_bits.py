"""On CPUs a token's logits have the same bits after a cached prefix and in a tree of drafts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blocks import TYPES, random_blocks
from needs import native

from dart_jax.decoding.tree import DraftTree, ancestor_mask
from dart_jax.models.attention.compaction import extend
from dart_jax.models.cache import init_cache
from dart_jax.models.kernels.tiles import pack_blocks
from dart_jax.models.networks.pure import bind
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.weights import fuse, pack, untie
from dart_jax.models.rope import Rope
from tests.support.tiny_configs import TARGET, copied, random_params

pytestmark = native

TOKENS = 24
CAPACITY = 40
_SMALL = dataclasses.replace(TARGET, num_hidden_layers=4, num_attention_heads=6, head_dim=32)
CONFIGS = {
    "qwen3": _SMALL,
    "all biases": dataclasses.replace(
        _SMALL,
        model_type="llama",
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        hidden_act="gelu_pytorch_tanh",
    ),
    "gemma2": dataclasses.replace(
        _SMALL,
        model_type="gemma2",
        hidden_act="gelu_pytorch_tanh",
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        query_pre_attn_scalar=20.0,
        sliding_window=6,
        sliding_layers=(0, 2),
    ),
    "granite": dataclasses.replace(
        _SMALL,
        model_type="granite",
        attention_multiplier=0.1,
        embedding_multiplier=3.0,
        residual_multiplier=0.3,
        logits_scaling=2.0,
    ),
    "olmo2": dataclasses.replace(_SMALL, model_type="olmo2"),
    "rotated in part": dataclasses.replace(
        _SMALL, rope=Rope(1e4, share=0.5), no_rope_layers=(1, 2), num_key_value_heads=3
    ),
}


def both(config, params, tokens, batch, kv="auto"):
    """Logits [B, T, V] of the same tokens: one after another, and each at once below a prefix."""
    execution = Execution.here(kv=kv)
    assert execution.attention == "native"

    @jax.jit
    def forward(params, tree, mask, cache, length):
        target = bind(config, params, execution.target)
        at = length[:, None] + tree.depth
        out = target(tree.tokens, at, mask, cache, length)
        return target.logits(out.hidden), extend(cache, out.rows, length)

    shape = config.num_key_value_heads, CAPACITY, config.head_dim
    dtype = execution.target.cache_dtype(jnp.float32)
    cache = init_cache(config.num_hidden_layers, batch, *shape, dtype)
    # What is not filled must not matter.
    cache = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), cache)
    caches, alone = [], []
    for t in range(TOKENS):
        caches.append(cache)
        root = DraftTree(tokens[:, t : t + 1], *(jnp.zeros((batch, 1), jnp.int32),) * 2)
        length = jnp.full((batch,), t, jnp.int32)
        logits, cache = forward(params, root, ancestor_mask(root, 1), cache, length)
        alone.append(logits[:, 0])
    return alone, caches, forward


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_alone_and_in_a_tree(name, batch):
    config, params = untie(CONFIGS[name], random_params(CONFIGS[name], 0))
    # Weights that bfloat16 can hold are stored so.
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)
    rng = np.random.default_rng(1)
    tokens = jnp.asarray(rng.integers(0, config.vocab_size, (batch, TOKENS)), jnp.int32)
    forms = ((params, "stored"), (rounded, "stored"), (params, "int8"), (params, "stored"))
    for (loaded, weights), kv in zip(forms, (*["auto"] * 3, "bfloat16"), strict=True):
        prepared = Execution.here(weights=weights).weights.prepare(copied(loaded))
        check(config, prepared, tokens, rng, kv)


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("type", TYPES)
def test_logits_of_weights_in_blocks(type, batch):
    """As they are stored in GGUF files, in each of their types; values in another, as in some."""
    config = dataclasses.replace(
        _SMALL, hidden_size=256, intermediate_size=256, num_attention_heads=8
    )
    rng = np.random.default_rng(1)
    tokens = jnp.asarray(rng.integers(0, config.vocab_size, (batch, TOKENS)), jnp.int32)

    def tiles(weights, transposed=False):
        out, inputs = weights.shape if transposed else weights.shape[::-1]
        kind = "Q6_K" if out == config.num_key_value_heads * config.head_dim else type
        return pack_blocks(kind, random_blocks(rng, kind, out, inputs))[0]

    check(config, fuse(pack(random_params(config, 0), tiles)), tokens, rng)


def check(config, params, tokens, rng, kv="auto"):
    """Compares all logits of a text, and those of its tokens on a path of a tree."""
    batch = len(tokens)
    alone, caches, forward = both(config, params, tokens, batch, kv)
    depth = 8
    for start in (0, 9, TOKENS - 9):
        # The path in question, and after each of its nodes one that is not on it.
        path = tokens[:, start : start + depth + 1]
        other = jnp.asarray(rng.integers(0, config.vocab_size, path.shape), jnp.int32)
        nodes = jnp.stack([path, other], axis=2).reshape(batch, -1)[:, :-1]
        index = jnp.arange(2 * depth + 1, dtype=jnp.int32)
        parents = jnp.maximum(jnp.where(index % 2 == 0, index - 2, index - 1), 0)
        at_depth = jnp.where(index % 2 == 0, index // 2, index // 2 + 1)
        tree = DraftTree(nodes, *(jnp.tile(x, (batch, 1)) for x in (parents, at_depth)))
        mask = ancestor_mask(tree, depth + 1)
        length = jnp.full((batch,), start, jnp.int32)
        logits, _ = forward(params, tree, mask, caches[start], length)
        for i in range(depth + 1):
            assert jnp.isfinite(logits[:, 2 * i]).all()
            np.testing.assert_array_equal(
                np.asarray(logits[:, 2 * i]).view(np.uint32),
                np.asarray(alone[start + i]).view(np.uint32),
            )
