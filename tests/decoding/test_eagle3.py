"""EAGLE-3 trees against a slow transcription without a cache."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import native
from tiny_configs import EAGLE3, TARGET, random_params

from dart_jax.decoding.drafting.base import DraftInput
from dart_jax.decoding.drafting.eagle3 import Eagle3Tree, draft_tree
from dart_jax.decoding.sampling import SamplingValues
from dart_jax.errors import UserError
from dart_jax.models.attention.compaction import append
from dart_jax.models.cache import init_cache
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.networks.pure import abstract_params, bind
from dart_jax.models.rope import Rope
from train.drafter.program import check_trainable


class Rows(NamedTuple):
    """The rows of each sequence: a row's features, and the token after it; rows after the last one
    are padding."""

    features: jax.Array
    next_tokens: jax.Array
    last: jax.Array


@functools.partial(jax.jit, static_argnums=(0, 3, 4), static_argnames="options")
def draft(config, model, rows, nodes, settings, cache=None, start=None, options=LayerOptions()):
    """Packed trees without their scores, int32 [B, 3, nodes + 1], and the rows to append."""
    features, next_tokens, last = rows
    start = jnp.zeros_like(last) if start is None else start
    cache = empty_cache(config, len(last), 1) if cache is None else cache
    inputs = DraftInput(
        SimpleNamespace(embed=model["embedding"].__getitem__),
        model,
        next_tokens,
        next_tokens,
        features,
        start[:, None] + jnp.arange(features.shape[1], dtype=jnp.int32)[None],
        last,
        start,
        SamplingValues(),
        None,
        None,
    )
    drafter = bind(config, model["drafter"], options)
    trees, new_rows = draft_tree(settings, drafter, inputs, nodes, cache)
    return trees[:, :3], new_rows


def empty_cache(config, batch, capacity):
    shape = batch, config.num_key_value_heads, capacity, config.head_dim
    return init_cache(1, *shape, jnp.float32)


def normed(x, scale, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def turned(x, theta):
    """Rows [T, heads, h] at positions 0, 1, ... as complex numbers times a rotation."""
    t, _, h = x.shape
    angle = np.arange(t)[:, None, None] / theta ** (np.arange(0, h, 2) / h)
    z = (x[..., : h // 2] + 1j * x[..., h // 2 :]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], axis=-1)


def project(config, p, features):
    """The residual stream [T, D] of features [T, F]."""
    eps, width = config.rms_norm_eps, config.target_hidden_size
    if config.norm_before_fc:
        features = normed(features, p["input_norm"]["scale"], eps)
    if config.fc_norm:
        parts = np.split(features, features.shape[1] // width, axis=-1)
        scales = [p["fc_norm"][i]["scale"] for i in range(len(parts))]
        parts = [normed(part, scale, eps) for part, scale in zip(parts, scales, strict=True)]
        features = np.concatenate(parts, axis=-1)
    return features @ p["fc"]["kernel"]


def layer(config, p, residual, embeds):
    """The decoder layer over one sequence, causally: [T, D]."""
    eps, h = config.rms_norm_eps, config.head_dim
    hidden = normed(residual, p["hidden_norm"]["scale"], eps)
    inputs = np.concatenate([normed(embeds, p["input_layernorm"]["scale"], eps), hidden], axis=-1)
    if config.norm_before_residual:
        residual = hidden
    t = len(inputs)
    q, k, v = ((inputs @ p[f"{x}_proj"]["kernel"]).reshape(t, -1, h) for x in "qkv")
    if config.qk_norm:
        q, k = (normed(x, p[f"{n}_norm"]["scale"], eps) for x, n in ((q, "q"), (k, "k")))
    q, k = turned(q, config.rope.theta), turned(k, config.rope.theta)
    shared = config.num_attention_heads // config.num_key_value_heads
    out = []
    for head in range(config.num_attention_heads):
        score = q[:, head] @ k[:, head // shared].T / np.sqrt(h)
        seen = np.tri(t, dtype=bool)
        if config.sliding_window is not None:
            seen &= ~np.tri(t, k=-config.sliding_window, dtype=bool)
        score = np.where(seen, score, -np.inf)
        out.append(softmax(score) @ v[:, head // shared])
    x = residual + np.concatenate(out, axis=-1) @ p["o_proj"]["kernel"]
    y = normed(x, p["post_attention_layernorm"]["scale"], eps)
    gate, up = (y @ p["mlp"][f"{x}_proj"]["kernel"] for x in ("gate", "up"))
    return x + (gate / (1 + np.exp(-gate)) * up) @ p["mlp"]["down_proj"]["kernel"]


def literal_tree(config, model, rows, i, nodes, settings):
    """Sequence i's tree, float64: every path runs separately after all real rows."""
    length = int(rows.last[i]) + 1
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), model["drafter"])
    embedding, ids = np.asarray(model["embedding"], np.float64), np.asarray(model["draft_ids"])
    features = project(config, p, np.asarray(rows.features[i, :length], np.float64))
    final = functools.partial(normed, scale=p["norm"]["scale"], eps=config.rms_norm_eps)
    next_tokens = np.asarray(rows.next_tokens[i, :length]).tolist()
    top_k = min(settings.top_k, len(ids))

    def followers(path):
        """The most likely tokens after a path of target ids, with their log-probabilities."""
        residual = features
        for n in range(len(path) + 1):
            output = layer(config, p, residual, embedding[next_tokens + path[:n]])[-1:]
            residual = np.concatenate([residual, final(output) if config.norm_output else output])
        logp = np.log(softmax(final(output[0]) @ p["lm_head"]["kernel"]))
        order = np.argsort(-logp, kind="stable")[:top_k]
        return [(int(ids[j]), logp[j]) for j in order]

    # A candidate: its path, its score, and which candidate is its parent.
    pool = [([token], score, -1) for token, score in followers([])]
    level = range(len(pool))
    for _ in range(settings.depth):
        rows = sorted(level, key=lambda i: -pool[i][1])[:top_k]
        start = len(pool)
        for row in rows:
            path, score, _ = pool[row]
            pool += [([*path, token], score + logp, row) for token, logp in followers(path)]
        level = range(start, len(pool))
    scores = np.array([score for _, score, _ in pool])
    # Where float32 might order otherwise, equality would prove nothing.
    assert np.diff(np.sort(scores)).min() > 2e-6
    best = sorted(range(len(pool)), key=lambda i: -scores[i])[:nodes]
    place = {-1: 0} | {i: node for node, i in enumerate(best, start=1)}
    tree = np.zeros((3, nodes + 1), np.int32)
    tree[0, 0] = next_tokens[-1]
    for i in best:
        path, _, parent = pool[i]
        tree[:, place[i]] = path[-1], place[parent], len(path)
    return tree


CONFIG = Eagle3Config(
    vocab_size=61,
    draft_vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    target_hidden_size=24,
    rope=Rope(100.0),
)


def random_model(seed, config=CONFIG, dtype=jnp.float32):
    """Parameters large enough for logits of order 1, and norms that are not 1."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(p.ndim == 1, 0.2, p.shape), dtype), abstract_params(config)
    )
    embedding = jnp.asarray(rng.normal(size=(config.vocab_size, config.hidden_size)), dtype)
    ids = rng.permutation(config.vocab_size)[: config.draft_vocab_size]
    return {
        "drafter": params,
        "embedding": embedding,
        "draft_ids": jnp.asarray(ids, jnp.int32),
    }


def random_rows(seed, lengths, config=CONFIG, dtype=jnp.float32):
    rng, shape = np.random.default_rng(seed), (len(lengths), max(lengths))
    features = jnp.asarray(rng.normal(size=(*shape, config.features_width)), dtype)
    tokens = jnp.asarray(rng.integers(0, config.vocab_size, shape), jnp.int32)
    return Rows(features, tokens, jnp.asarray(lengths, jnp.int32) - 1)


def as_in_vllm(**options):
    return Eagle3Tree(depth=3, top_k=3), 20, options


@pytest.mark.long(keep=2)
@pytest.mark.parametrize(
    ("settings", "nodes", "options"),
    [
        (Eagle3Tree(depth=4, top_k=4), 50, {}),
        (Eagle3Tree(depth=5, top_k=2), 12, {}),
        (Eagle3Tree(depth=2, top_k=7), 200, {}),  # more than there are candidates
        (Eagle3Tree(depth=1, top_k=5), 13, {}),
        (Eagle3Tree(depth=6, top_k=3), 3, {}),  # fewer than there are levels
        (Eagle3Tree(depth=4, top_k=1), 5, {}),
        (Eagle3Tree(depth=2, top_k=3), 0, {}),
        as_in_vllm(norm_before_residual=True, norm_output=True, fc_norm=True, qk_norm=True),
        as_in_vllm(norm_before_fc=True, feature_layers=(1, 2, 5, 9)),
        as_in_vllm(sliding_window=2),
        as_in_vllm(sliding_window=4),
    ],
)
def test_trees_are_the_literal_ones(settings, nodes, options):
    """In a batch, whose rows are padded with garbage."""
    config = dataclasses.replace(CONFIG, **options)
    for seed in range(2):
        model, rows = random_model(seed, config), random_rows(seed, [6, 1, 3], config)
        trees, _ = draft(config, model, rows, nodes, settings)
        for i, tree in enumerate(trees):
            expected = literal_tree(config, model, rows, i, nodes, settings)
            np.testing.assert_array_equal(tree, expected)


def test_a_drafters_own_embedding():
    """Tokens that only the target has are read as the drafter's last one."""
    config = dataclasses.replace(CONFIG, own_embedding=True)
    drafter = bind(config, random_model(0, config)["drafter"])
    embed = drafter.embedding(lambda tokens: pytest.fail("the target's embedding was read"))
    table = np.asarray(drafter.embed_tokens[...])
    tokens = jnp.asarray([[0, 60, 61, 99]], jnp.int32)
    np.testing.assert_array_equal(embed(tokens), table[[0, 60, 60, 60]][None])
    plain = bind(CONFIG, random_model(0)["drafter"])
    assert plain.embedding(len) is len


def test_the_first_of_equal_nodes_wins():
    model, rows = random_model(0), random_rows(0, [4])
    model["drafter"]["lm_head"] = jax.tree.map(jnp.zeros_like, model["drafter"]["lm_head"])
    (tree,), _ = draft(CONFIG, model, rows, 8, Eagle3Tree(depth=2, top_k=3))
    x, y, z = model["draft_ids"][:3].tolist()
    assert tree.tolist() == [
        [int(rows.next_tokens[0, -1]), x, y, z, x, y, z, x, y],
        [0, 0, 0, 0, 1, 1, 1, 2, 2],
        [0, 1, 1, 1, 2, 2, 2, 2, 2],
    ]


CORE = LayerOptions(attention="native")


@pytest.mark.parametrize(
    ("window", "options"),
    [
        (None, LayerOptions()),
        (5, LayerOptions()),
        pytest.param(5, CORE, marks=native),
        pytest.param(3, CORE, marks=native),
    ],
)
def test_drafting_with_a_cache(window, options):
    config = dataclasses.replace(CONFIG, head_dim=16, sliding_window=window)
    model, whole = random_model(1, config), random_rows(1, [9, 1, 12], config)
    expected, _ = draft(config, model, whole, 59, Eagle3Tree())
    batch = len(whole.last)
    # Garbage must not be seen.
    cache = jax.tree.map(lambda x: x + 100, empty_cache(config, batch, 40))
    length = jnp.zeros(batch, jnp.int32)
    # As when decoding: a few rows per step, a different number for each sequence.
    rng = np.random.default_rng(0)
    while (length <= whole.last).any():
        left = whole.last + 1 - length
        count = jnp.minimum(left, jnp.asarray(rng.integers(1, 6, batch), jnp.int32))
        # A finished sequence drafts from its last row again.
        length, count = jnp.where(left > 0, length, whole.last), jnp.maximum(count, 1)
        place = length[:, None] + jnp.arange(5, dtype=jnp.int32)[None]
        place = jnp.minimum(place, whole.features.shape[1] - 1)
        new = Rows(
            jnp.take_along_axis(whole.features, place[:, :, None], axis=1),
            jnp.take_along_axis(whole.next_tokens, place, axis=1),
            count - 1,
        )
        trees, rows = draft(config, model, new, 59, Eagle3Tree(), cache, length, options=options)
        every_row = jnp.broadcast_to(jnp.arange(5, dtype=jnp.int32)[None], (batch, 5))
        cache = append(cache, rows, every_row, length)
        length = length + count
    np.testing.assert_array_equal(trees, expected)


def test_drafts_in_bfloat16():
    model, rows = random_model(3, dtype=jnp.bfloat16), random_rows(3, [5, 8], dtype=jnp.bfloat16)
    trees, _ = draft(CONFIG, model, rows, 59, Eagle3Tree())
    for tokens, parents, depth in trees:
        assert (depth[1:] == depth[parents[1:]] + 1).all()
        assert np.isin(tokens[1:], model["draft_ids"]).all()
        assert len({*zip(parents[1:].tolist(), tokens[1:].tolist(), strict=True)}) == 59


def test_the_target_captures_the_layers_that_are_asked_for():
    target = bind(TARGET, random_params(TARGET, 0))
    tokens, mask = jnp.arange(6, dtype=jnp.int32)[None], jnp.tril(jnp.ones((1, 6, 6), bool))

    def features(layers):
        return np.asarray(target(tokens, tokens, mask, feature_layers=layers).features)

    np.testing.assert_array_equal(features(None), features((2, 3, 4)))
    each = [features((layer,)) for layer in (0, 3, 6)]
    np.testing.assert_array_equal(each[0], target.embed(tokens))
    np.testing.assert_array_equal(features((0, 3, 6)), np.concatenate(each, axis=-1))


@pytest.mark.parametrize("name", ["norm_output", "own_embedding", "feature_layers"])
def test_a_drafter_that_is_not_trained_on(name):
    target = TARGET
    check_trainable("there", target, EAGLE3)
    value = (0, 1, 2) if name == "feature_layers" else True
    drafter = dataclasses.replace(EAGLE3, **{name: value})
    with pytest.raises(UserError, match=f"--init there is a drafter with {name}, .* leave --init"):
        check_trainable("there", target, drafter)
