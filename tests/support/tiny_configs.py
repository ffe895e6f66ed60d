"""Tiny configurations of a target and drafters, and random parameters for them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import BlockConfig, DartConfig, DraftLayerConfig, Eagle3Config
from dart_jax.models.networks.pure import abstract_params, bind, init_params
from dart_jax.models.rope import Rope

VOCABULARY = 61
TARGET = TargetConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=7,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    tie_word_embeddings=True,
    rope=Rope(1e4),
)
# Of the block drafters whose outputs their authors' code printed.
AUTHORS = TargetConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=9,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
# Queries of four heads share two key heads.
DART = DartConfig(
    vocab_size=VOCABULARY,
    draft_vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    target_hidden_size=32,
    draft_length=7,
)
EAGLE3 = Eagle3Config(
    **{field.name: getattr(DART, field.name) for field in dataclasses.fields(DraftLayerConfig)}
)
BLOCK = BlockConfig.for_target(
    TARGET,
    num_hidden_layers=2,
    block_size=5,
    mask_token_id=1,
    feature_layers=(1, 4),
    conv_group_size=8,
    pair_rank=8,
    pair_gate="linear",
    own_head=True,
)
ALL = np.arange(VOCABULARY, dtype=np.int32)


def random_params(config, seed):
    """Parameters large enough for logits of order 1, and norms that are not 1."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: jnp.asarray(rng.normal(p.ndim == 1, 0.2, p.shape), jnp.float32),
        abstract_params(config),
    )


BLOCK_KINDS = ("dflash", "jetspec", "dspark", "dflash2", "gated")


def block_drafter(target, kind, rank=6):
    """A random block drafter for a target of more than 300 tokens: config, parameters and draft
    vocabulary."""
    ids = np.sort(np.random.default_rng(1).permutation(300)[:200]).astype(np.int32)
    shape = {"num_hidden_layers": 2, "mask_token_id": 7}
    forms = {
        "dflash": {"block_size": 6, "feature_layers": (0, 1, 3, 6)},
        "jetspec": {"block_size": 7, "feature_layers": (1, 4), "causal_layers": (0, 1)},
        "dspark": {
            **{"block_size": 5, "feature_layers": target.feature_layers, "shifted": True},
            **{"pair_rank": rank, "confidence": "pairs", "own_head": True},
            **{"draft_vocab_size": len(ids), "layout": "speculators"},
        },
        "dflash2": {
            **{"block_size": 6, "feature_layers": (2, 5), "conv_group_size": 8},
            **{"pair_rank": rank, "pair_gate": "linear", "selector_top_k": 9},
            **{"sliding_window": 11, "sliding_layers": (1,)},
        },
    }
    forms["gated"] = {**forms["dspark"], "pair_gate": "sigmoid", "own_embedding": True}
    rng = np.random.default_rng(BLOCK_KINDS.index(kind))
    config = BlockConfig.for_target(target, **shape, **forms[kind])
    params = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(rng.normal(0, 0.2, leaf.shape), jnp.float32),
        init_params(config, 0),
    )
    draftable = ids if config.own_head else np.arange(target.vocab_size, dtype=np.int32)
    return config, params, draftable


@functools.partial(jax.jit, static_argnums=0)
def prompt_logits(config, params, tokens):
    """A target's logits after every token, [B, T, V], of int32 [B, T]."""
    length = tokens.shape[1]
    at = jnp.arange(length, dtype=jnp.int32)[None]
    model = bind(config, params)
    return model.logits(model(tokens, at, jnp.tril(jnp.ones((1, length, length), bool))).hidden)


def log_softmax(x):
    return np.log(np.exp(x) / np.exp(x).sum(-1, keepdims=True))


def copied(params):
    """A copy of nested dicts; `fuse` and `pack` consume their arguments."""
    return {k: copied(v) if isinstance(v, dict) else v for k, v in params.items()}
