"""EAGLE-3 trees: against the reference's, and against a slow transcription without a cache."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import GOLDEN, NAMES, load_golden
from needs import native
from safetensors.numpy import load_file
from tiny_configs import EAGLE3, TARGET, random_params

from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree, draft_tree
from dart_jax.decoding.tree import ancestor_mask, unpack
from dart_jax.errors import UserError
from dart_jax.models.attention.compaction import append
from dart_jax.models.cache import init_cache
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.networks.pure import abstract_params, bind
from dart_jax.models.rope import Rope
from train.drafter import check_trainable

REFERENCE = Eagle3Tree()


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "embedding", "draft_ids"],
    meta_fields=["config"],
)
@dataclasses.dataclass(frozen=True)
class Model:
    """A drafter, and its target's embedding."""

    config: Eagle3Config
    params: dict
    embedding: jax.Array
    draft_ids: jax.Array


class DraftInput(NamedTuple):
    """The rows of each sequence, padded: a row's features, and the token after it."""

    features: jax.Array
    next_tokens: jax.Array
    last: jax.Array

    @classmethod
    def pad(cls, features, next_tokens):
        rows = max(map(len, features))
        rng = np.random.default_rng(0)
        shape = (len(features), rows)
        padded = rng.normal(size=(*shape, features[0].shape[1])).astype(np.float32)
        tokens = rng.integers(0, 9, shape).astype(np.int32)
        for i, (f, t) in enumerate(zip(features, next_tokens, strict=True)):
            padded[i, : len(f)], tokens[i, : len(t)] = f, t
        last = np.array([len(f) - 1 for f in features], np.int32)
        return cls(jnp.asarray(padded), jnp.asarray(tokens), jnp.asarray(last))

    def of(self, i):
        """Sequence i alone, without padding."""
        n = int(self.last[i]) + 1
        return DraftInput(
            self.features[i : i + 1, :n], self.next_tokens[i : i + 1, :n], self.last[i, None]
        )

    @property
    def root(self):
        return jnp.take_along_axis(self.next_tokens, self.last[:, None], axis=1)[:, 0]


@functools.partial(jax.jit, static_argnames=("nodes", "settings", "options"))
def draft(
    model, inputs, nodes, settings=REFERENCE, cache=None, length=None, options=LayerOptions()
):
    """Packed trees without their scores, int32 [B, 3, nodes + 1], and the rows to append."""
    features, next_tokens, last = inputs
    first = jnp.zeros_like(last) if length is None else length
    positions = first[:, None] + jnp.arange(features.shape[1], dtype=jnp.int32)[None]
    drafter = bind(model.config, model.params, options)
    rows = features, next_tokens, positions, last
    trees, rows = draft_tree(
        settings, drafter, model.embedding.__getitem__, model.draft_ids, *rows, nodes, cache, length
    )
    return trees[:, :3], rows


# The reference


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_drafts_the_same_trees(name):
    golden, directory = load_golden(name), GOLDEN / name
    params = golden.eagle_params
    embedding = load_file(directory / "target" / "model.safetensors")["model.embed_tokens.weight"]
    model = Model(golden.eagle, params["drafter"], jnp.asarray(embedding), params["draft_ids"])
    preceding = [tokens[1:] for tokens in golden.of_prompts("preceding", 0)]
    inputs = DraftInput.pad(golden.of_prompts("aux"), preceding)
    trees, _ = draft(model, inputs, nodes=59)
    masks = ancestor_mask(unpack(jnp.asarray(trees)), REFERENCE.levels)
    reference = np.load(GOLDEN / name / "eagle3" / "golden.npz")
    for i, ((tokens, _, depth), mask) in enumerate(zip(trees, masks, strict=True)):
        np.testing.assert_array_equal(tokens, reference[f"draft_tokens_{i}"])
        np.testing.assert_array_equal(depth, reference[f"tree_position_ids_{i}"])
        np.testing.assert_array_equal(mask, reference[f"tree_mask_{i}"])


# A slow transcription


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


def literal_tree(model, inputs, nodes, settings):
    """One sequence's tree, float64: every path runs separately after all real rows."""
    config = model.config
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), model.params)
    embedding = np.asarray(model.embedding, np.float64)
    features = project(config, p, np.asarray(inputs.features[0], np.float64))
    final = functools.partial(normed, scale=p["norm"]["scale"], eps=config.rms_norm_eps)
    next_tokens = np.asarray(inputs.next_tokens[0]).tolist()
    ids = np.asarray(model.draft_ids)
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
    best = sorted(sorted(range(len(pool)), key=lambda i: -scores[i])[:nodes])
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
    return Model(config, params, embedding, jnp.asarray(ids, jnp.int32))


def random_inputs(seed, lengths, config=CONFIG):
    rng = np.random.default_rng(seed)
    return DraftInput.pad(
        [rng.normal(size=(n, config.features_width)) for n in lengths],
        [rng.integers(0, config.vocab_size, n) for n in lengths],
    )


@pytest.mark.long(keep=2)
@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        (Eagle3Tree(depth=4, top_k=4), 50),
        (Eagle3Tree(depth=5, top_k=2), 12),
        (Eagle3Tree(depth=2, top_k=7), 200),  # more than there are candidates
        (Eagle3Tree(depth=1, top_k=5), 13),
        (Eagle3Tree(depth=6, top_k=3), 3),  # fewer than there are levels
        (Eagle3Tree(depth=4, top_k=1), 5),
        (Eagle3Tree(depth=2, top_k=3), 0),
    ],
)
def test_trees_are_the_literal_ones(settings, nodes):
    """In a batch, whose rows are padded with garbage."""
    for seed in range(4):
        model, inputs = random_model(seed), random_inputs(seed, [6, 1, 3])
        trees, _ = draft(model, inputs, nodes, settings)
        for i, tree in enumerate(trees):
            np.testing.assert_array_equal(tree, literal_tree(model, inputs.of(i), nodes, settings))


@pytest.mark.parametrize(
    "options",
    [
        {"norm_before_residual": True, "norm_output": True, "fc_norm": True, "qk_norm": True},
        {"norm_before_fc": True, "feature_layers": (1, 2, 5, 9)},
        {"sliding_window": 2},
        {"sliding_window": 4},
    ],
    ids=lambda options: "-".join(options),
)
def test_newer_drafters_draft_the_literal_trees(options):
    """In the computation that vLLM has for these options; and with windows."""
    config = dataclasses.replace(CONFIG, **options)
    settings = Eagle3Tree(depth=3, top_k=3)
    for seed in range(2):
        model, inputs = random_model(seed, config), random_inputs(seed, [6, 1, 3], config)
        trees, _ = draft(model, inputs, 20, settings)
        for i, tree in enumerate(trees):
            np.testing.assert_array_equal(tree, literal_tree(model, inputs.of(i), 20, settings))


def test_a_drafters_own_embedding():
    """Tokens that only the target has are read as the drafter's last one."""
    config = dataclasses.replace(CONFIG, own_embedding=True)
    drafter = bind(config, random_model(0, config).params)
    embed = drafter.embedding(lambda tokens: pytest.fail("the target's embedding was read"))
    table = np.asarray(drafter.embed_tokens[...])
    tokens = jnp.asarray([[0, 60, 61, 99]], jnp.int32)
    np.testing.assert_array_equal(embed(tokens), table[[0, 60, 60, 60]][None])
    plain = bind(CONFIG, random_model(0).params)
    assert plain.embedding(len) is len


def test_the_first_of_equal_nodes_wins():
    model = random_model(0)
    params = {**model.params, "lm_head": jax.tree.map(jnp.zeros_like, model.params["lm_head"])}
    inputs = random_inputs(0, [4])
    model = dataclasses.replace(model, params=params)
    (tree,), _ = draft(model, inputs, 8, Eagle3Tree(depth=2, top_k=3))
    x, y, z = model.draft_ids[:3].tolist()
    assert tree.tolist() == [
        [int(inputs.root[0]), x, y, z, x, y, z, x, y],
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
    model, inputs = random_model(1, config), random_inputs(1, [9, 1, 12])
    expected, _ = draft(model, inputs, 59)
    b = len(inputs.last)
    cache = init_cache(1, b, config.num_key_value_heads, 40, config.head_dim, jnp.float32)
    cache = jax.tree.map(lambda x: x + 100, cache)  # garbage must not be seen
    length = jnp.zeros(b, jnp.int32)
    # As when decoding: a few rows per step, a different number for each sequence.
    rng = np.random.default_rng(0)
    while True:
        left = inputs.last + 1 - length
        count = jnp.minimum(left, jnp.asarray(rng.integers(1, 6, b), jnp.int32))
        # A finished sequence drafts from its last row again.
        length, count = jnp.where(left > 0, length, inputs.last), jnp.maximum(count, 1)
        place = length[:, None] + jnp.arange(5, dtype=jnp.int32)[None]
        place = jnp.minimum(place, inputs.features.shape[1] - 1)
        new = DraftInput(
            jnp.take_along_axis(inputs.features, place[:, :, None], axis=1),
            jnp.take_along_axis(inputs.next_tokens, place, axis=1),
            count - 1,
        )
        trees, rows = draft(model, new, 59, cache=cache, length=length, options=options)
        every_row = jnp.broadcast_to(jnp.arange(5, dtype=jnp.int32)[None], (b, 5))
        cache = append(cache, rows, every_row, length)
        length = length + count
        if bool((length > inputs.last).all()):
            break
    np.testing.assert_array_equal(trees, expected)


def test_drafts_in_bfloat16():
    model, inputs = random_model(3, dtype=jnp.bfloat16), random_inputs(3, [5, 8])
    inputs = inputs._replace(features=inputs.features.astype(jnp.bfloat16))
    trees, _ = draft(model, inputs, 59)
    for (tokens, parents, depth), root in zip(trees, inputs.root, strict=True):
        assert (tokens[0], depth[0]) == (root, 0)
        assert (depth[1:] == depth[parents[1:]] + 1).all()
        assert np.isin(tokens[1:], model.draft_ids).all()
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
