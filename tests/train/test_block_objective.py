"""Block drafters in training: the predictions after every prefix are those of decoding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_configs import ALL, TARGET, VOCABULARY, random_params

from dart_jax.errors import UserError
from dart_jax.models.cache import init_cache
from dart_jax.models.drafter_config import BlockConfig
from dart_jax.models.networks.pure import bind
from train.data.batch import Batch
from train.objective.drafter_shape import DrafterShape
from train.objective.loss import DrafterLoss, Objective
from train.objective.predictions import Frozen, PackedForward

FEW = np.sort(np.random.default_rng(1).permutation(VOCABULARY)[:40]).astype(np.int32)
SHAPE = {"num_hidden_layers": 2, "mask_token_id": 3, "feature_layers": TARGET.feature_layers}
DFLASH = BlockConfig.for_target(TARGET, **SHAPE, block_size=4)
DSPARK = BlockConfig.for_target(
    TARGET, 40, **SHAPE, block_size=3, shifted=True, pair_rank=5, confidence="pairs", own_head=True
)
DFLASH2 = dataclasses.replace(
    DFLASH, conv_group_size=8, pair_rank=5, pair_gate="linear", selector_top_k=VOCABULARY,
    sliding_window=4, sliding_layers=(1,), causal_layers=(0,),
)  # fmt: skip
DRAFTERS = {"dflash": DFLASH, "dspark": DSPARK, "dflash2": DFLASH2}
ANCHORS = np.array([[1, 4, 8, 20], [0, 3, 7, 18]], np.int32)


@pytest.fixture(scope="module")
def batch():
    """Two rows of several documents, and padding."""
    rng = np.random.default_rng(0)
    document = np.array([[1] * 7 + [2] * 9 + [3] * 3 + [0] * 5, [1] * 20 + [2] * 4], np.int32)
    tokens = rng.integers(0, VOCABULARY, document.shape).astype(np.int32)
    return Batch(tokens, document, rng.random(document.shape) < 0.8)


@pytest.fixture(params=DRAFTERS)
def setting(request):
    """A drafter's forward pass, its trained parameters and the others."""
    drafter = DRAFTERS[request.param]
    params = random_params(drafter, 2)
    ids = FEW if drafter.own_head else ALL
    head = {"lm_head": params.pop("lm_head")} if drafter.own_head else None
    frozen = Frozen(random_params(TARGET, 1), jnp.asarray(ids), head)
    return PackedForward(TARGET, drafter, drafter.num_positions, 3), params, frozen


def literally(forward, params, frozen, batch, row, anchor):
    """Logits and confidence after one prefix, with a cache as in decoding; pair scores are those of
    the text's tokens."""
    config, target = forward.drafter, bind(TARGET, frozen.target)
    drafter = bind(config, frozen.whole(params))
    data = forward.run_target(frozen, batch)
    start = int(np.argmax(batch.document[row] == batch.document[row, anchor]))
    length, size = anchor + 1 - start, config.block_size
    features = data.outputs.features[row : row + 1, start : anchor + 1]
    places = jnp.arange(length, dtype=jnp.int32)[None]
    heads, layers = config.num_key_value_heads, config.num_hidden_layers
    cache = init_cache(layers, 1, heads, length, config.head_dim, jnp.float32)
    cache = jax.tree.map(
        lambda _, rows: rows, cache, drafter.keys(drafter.context(features), places)
    )
    tokens = np.append(batch.tokens[row], [0] * size)
    block = jnp.asarray([[tokens[anchor + 1]] + [config.mask_token_id] * (size - 1)])
    positions = length + jnp.arange(size, dtype=jnp.int32)[None]
    normed = drafter(target.embed(block), positions, cache, jnp.array([length]))[0]
    logits = drafter.logits(normed, target.logits)
    if not config.pair_rank:
        return logits, None
    before = jnp.asarray(tokens[anchor + 1 : anchor + 1 + config.num_positions])
    logits += drafter.pairs.all_next(drafter.pairs.factors(normed, before))
    if config.confidence is None:
        return logits, None
    return logits, drafter.confidence(normed, drafter.pairs.first_factors(before))


def predicted(forward, params, frozen, batch):
    """The predictions after the anchors, arrays [B, A, d, ..] by name."""

    def run(params):
        inputs = forward.inputs(params, frozen, batch, jnp.asarray(ANCHORS))
        chunks = [forward.chunk(inputs, jnp.int32(i)) for i in range(forward.chunks(inputs)[0])]
        positions = range(1, forward.num_positions + 1)
        return [[forward.predictions(each, jnp.int32(t)) for t in positions] for each in chunks]

    made = [[each._asdict() for each in positions] for positions in jax.jit(run)(params)]
    return {
        name: np.concatenate([np.stack([p[name] for p in ps], 2) for ps in made], axis=1)
        for name in ("draft", "teacher", "mass", "valid", "confidence")
        if made[0][0][name] is not None
    }


@pytest.mark.long
def test_predictions_are_those_of_decoding(setting, batch):
    made = predicted(*setting, batch)
    for r, c in np.ndindex(ANCHORS.shape):
        logits, confidence = literally(*setting, batch, r, ANCHORS[r, c])
        np.testing.assert_allclose(made["draft"][r, c], jax.nn.log_softmax(logits), atol=5e-5)
        if confidence is not None:
            np.testing.assert_allclose(made["confidence"][r, c], confidence, atol=2e-5)


@pytest.mark.long(keep=1)
def test_the_loss_with_weights_of_the_path(setting, batch):
    """Total variation, weighted by how much of the path depends on a position, and the surprise of
    the confidence; from predictions alone."""
    forward, params, frozen = setting
    loss = DrafterLoss(forward, Objective(loss="tv", position_weights="path"))
    made = predicted(*setting, batch)
    mass, valid, p, q = made["mass"], made["valid"], np.exp(made["teacher"]), np.exp(made["draft"])
    kl = mass * np.sum(p * (np.log(p) - np.log(q)), -1)
    apart = np.abs(p - q).sum(-1) / 2
    rates = mass * (1 - apart)
    products = np.cumprod(0.9 * np.where(valid, rates, 0) + 0.1, axis=-1)
    weights = np.stack([products[..., t:].sum(-1) for t in range(forward.num_positions)], -1)
    losses = weights * (0.1 * kl + 0.9 * mass * apart)
    if "confidence" in made:
        sure = 1 / (1 + np.exp(-made["confidence"]))
        losses -= rates * np.log(sure) + (1 - rates) * np.log(1 - sure)

    def total(params):
        return loss.total(params, frozen, batch, jnp.asarray(ANCHORS))

    value, gradients = jax.jit(jax.value_and_grad(total))(params)
    np.testing.assert_allclose(value, losses[valid].sum(), rtol=1e-5)
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "dflash", "pair_rank": 4}, "--pair-rank is of DART and DSpark"),
        ({"pair_rank": -1}, "--pair-rank must be at least 0"),
        ({"method": "dspark", "train": "pairs"}, "--train pairs is DART's"),
        ({"pair_rank": 2, "train": "pairs"}, "pass --init"),
        ({"init": "x", "draft_vocab": 20}, "leave --start and --draft-vocab out"),
        ({"draft_vocab": -1}, "--draft-vocab must be at least 0"),
        ({"method": "dflash", "shifted": False}, "--no-shifted is DART's"),
        ({"layers": 2}, "drafters have one layer; leave it out with --method dart"),
        ({"method": "eagle3", "layers": 2}, "drafters have one layer"),
        ({"start": "random"}, "--start is of block drafters; leave it out with --method dart"),
        ({"method": "dspark", "init": "x", "start": "informed"}, "leave --start and --draft"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(UserError, match=message):
        DrafterShape(**options)


def test_blocks_cannot_be_thinned(setting):
    forward, _, _ = setting
    with pytest.raises(UserError, match="--thin is of DART and EAGLE-3"):
        DrafterLoss(forward, Objective(anchors=8, thin=True))
