"""Training: batches and losses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.pure import abstract_params, bind
from dart_jax.rope import rotate
from train.data import Windows
from train.demo import DemoConfig
from train.lm import causal, held_out_loss, lm_loss
from train.objective import (
    AnchorBatches,
    agreement,
    anchored_logits,
    annealed_kl,
    draw_anchors,
)
from train.regenerate import Sequences


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# Batches


@pytest.mark.parametrize(("tokens", "batch"), [(101, 3), (100, 3), (57, 1)])
def test_windows_cover_the_stream_once_an_epoch(tokens, batch):
    length = 8
    windows = Windows(np.arange(tokens, dtype=np.uint16), batch, length, seed=5)
    per_epoch = (tokens - length) // length // batch
    starts = []
    for epoch in range(3):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        rows = np.concatenate([windows(step) for step in steps])
        assert rows.dtype == np.int32
        assert rows.tolist() == [list(range(row[0], row[0] + length)) for row in rows.tolist()]
        # One behind the other from a random phase: no token twice, none left out between them.
        assert np.diff(np.sort(rows[:, 0])).tolist() == [length] * (len(rows) - 1)
        assert 0 <= rows.min() < length
        starts.append(rows[:, 0].tolist())
    assert starts[0] != starts[1] != starts[2]


def test_windows_begin_at_every_phase():
    windows = Windows(np.arange(24), 1, 8)
    assert {min(windows(step)[0, 0], windows(step + 1)[0, 0]) for step in range(0, 400, 2)} == {
        *range(8)
    }


def test_windows_depend_on_seed_and_step_alone():
    tokens = np.random.default_rng(0).integers(0, 50, 500)
    windows, again = Windows(tokens, 2, 10, seed=1), Windows(tokens, 2, 10, seed=1)
    forward = [windows(step).tolist() for step in range(60)]
    assert [again(step).tolist() for step in reversed(range(60))] == forward[::-1]
    assert Windows(tokens, 2, 10, seed=2)(0).tolist() != forward[0]


def test_windows_give_some_rows_of_a_batch():
    windows = Windows(np.arange(200), 5, 8, seed=1)
    np.testing.assert_array_equal(windows(3, slice(1, 4)), windows(3)[1:4])


def test_windows_tell_other_data():
    tokens = np.arange(200)
    others = [
        Windows(tokens, 2, 10),
        Windows(tokens, 2, 10, seed=1),
        Windows(tokens, 2, 11),
        Windows(tokens + 1, 2, 10),
    ]
    assert len({windows.fingerprint for windows in others}) == len(others)
    assert Windows(tokens.copy(), 2, 10).fingerprint == others[0].fingerprint


@pytest.fixture
def sequences():
    """Eleven sequences whose tokens and length are their number."""
    number = np.arange(11)
    return Sequences(np.repeat(number[:, None], 4, 1).astype(np.uint16), number.astype(np.int32))


def test_anchor_batches_take_every_sequence_once_an_epoch(sequences):
    batches = AnchorBatches(sequences, 3, seed=2)
    taken = [[batches(3 * epoch + index) for index in range(3)] for epoch in range(40)]
    for epoch in taken:
        lengths = np.concatenate([batch.length for batch in epoch])
        assert len(set(lengths.tolist())) == 9
        tokens = np.concatenate([batch.tokens for batch in epoch])
        assert tokens.dtype == np.int32
        np.testing.assert_array_equal(tokens, np.repeat(lengths[:, None], 4, 1))
    seen = {int(n) for epoch in taken for batch in epoch for n in batch.length}
    assert seen == set(range(11))


def test_anchor_batches_depend_on_seed_and_step_alone(sequences):
    forward = [AnchorBatches(sequences, 3, 2)(step).length.tolist() for step in range(9)]
    batches = AnchorBatches(sequences, 3, 2)
    assert [batches(step).length.tolist() for step in reversed(range(9))] == forward[::-1]
    assert AnchorBatches(sequences, 3, 4)(0).length.tolist() != forward[0]


def test_anchors_leave_room_for_the_whole_draft():
    length = np.array([3, 8, 9, 10, 40], np.int32)
    anchors = np.asarray(draw_anchors(jax.random.key(0), jnp.asarray(length), 2000, horizon=8))
    assert anchors.dtype == np.int32
    # The last of the eight predictions is compared at the row of the sequence's last token.
    drawn = [sorted(set(row)) for row in anchors.tolist()]
    assert drawn == [[0], [0], [0], [0, 1], list(range(32))]


# Losses


def test_annealed_kl():
    rng = np.random.default_rng(0)
    teacher, draft = 3 * rng.normal(size=(2, 2, 3, 4, 9))
    p, q = softmax(teacher), softmax(draft)
    literal = 0.0
    for b in range(2):
        for a in range(3):
            for t in range(4):
                literal += 0.6**t * sum(
                    p[b, a, t, v] * np.log(p[b, a, t, v] / q[b, a, t, v]) for v in range(9)
                )
    loss = annealed_kl(jnp.asarray(teacher, jnp.float32), jnp.asarray(draft, jnp.float32), 0.6)
    assert float(loss) == pytest.approx(literal / 6, rel=1e-6)
    same = jnp.asarray(teacher, jnp.float32)
    assert float(annealed_kl(same, same + 7, 0.6)) == pytest.approx(0, abs=1e-6)


def test_agreement():
    teacher = jax.nn.one_hot(jnp.array([[[0, 1, 2], [2, 1, 0]]]), 3)
    draft = jax.nn.one_hot(jnp.array([[[0, 1, 1], [2, 0, 1]]]), 3)
    assert agreement(teacher, draft).tolist() == [1.0, 0.5, 0.0]


SHAPES = DemoConfig(vocab_size=61, hidden_size=64, intermediate_size=48, layers=7, draft_length=3)
TARGET = SHAPES.target
# Queries of four heads share two key heads.
DRAFTER = dataclasses.replace(
    SHAPES.drafter, num_attention_heads=4, num_key_value_heads=2, head_dim=16
)


def random_params(config, seed):
    """Parameters large enough for logits of order 1, and norms that are not 1."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: jnp.asarray(rng.normal(p.ndim == 1, 0.2, p.shape), jnp.float32),
        abstract_params(config),
    )


@pytest.fixture(scope="module")
def anchored():
    """Parameters, tokens [2, 10] and anchors [2, 2], the first and the last among them."""
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 61, (2, 10)), jnp.int32)
    anchors = jnp.array([[0, 5], [3, 3]], jnp.int32)
    return random_params(TARGET, 1), random_params(DRAFTER, 2), tokens, anchors


@pytest.fixture(scope="module")
def prefixes(anchored):
    """What the target gives for the first n tokens alone, by n: features, last logits."""
    target_params, _, tokens, _ = anchored

    @jax.jit
    def run(tokens):
        target = bind(TARGET, target_params)
        out = target(tokens, *causal(*tokens.shape))
        return out.features, target.logits(out.hidden[:, -1])

    return {n: run(tokens[:, :n]) for n in range(1, tokens.shape[1] + 1)}


def one_anchor_at_a_time(params, target_params, tokens, anchors, prefixes):
    """As when decoding: the drafter sees the prefix alone, the target what was drafted before."""
    target, drafter = bind(TARGET, target_params), bind(DRAFTER, params)
    teacher, draft = [], []
    for row, row_anchors in enumerate(anchors.tolist()):
        for n in row_anchors:
            features, _ = prefixes[n + 1]
            after = target.embed(tokens[row : row + 1, 1 : n + 2])
            positions = jnp.arange(n + 1, dtype=jnp.int32)[None]
            anchor = jnp.array([[n]], jnp.int32)
            logits, _ = drafter(features[row : row + 1], after, positions, anchor)
            draft.append(logits[0, 0])
            following = range(n + 2, n + 2 + DRAFTER.num_positions)
            teacher += [prefixes[length][1][row] for length in following]
    shape = (*anchors.shape, DRAFTER.num_positions, -1)
    return jnp.stack(teacher).reshape(shape), jnp.stack(draft).reshape(shape)


def dense(params, target_params, tokens, anchors, _):
    """All rows at once: clean rows, then each block's mask rows, under one explicit mask."""
    target, drafter = bind(TARGET, target_params), bind(DRAFTER, params)
    (b, t), m, width = tokens.shape, DRAFTER.draft_length, DRAFTER.hidden_size
    anchors = np.asarray(anchors)
    out = target(tokens, *causal(b, t))
    after = target.embed(jnp.concatenate([tokens[:, 1:], tokens[:, :1]], axis=1))
    residual = drafter.fc(out.features)
    clean = jnp.concatenate([drafter.input_layernorm(after), drafter.hidden_norm(residual)], -1)
    blocks = anchors.shape[1] * m
    masks = jnp.broadcast_to(params["mask_rep"], (b, blocks, 2 * width))
    x = jnp.concatenate([residual, masks[..., :width]], axis=1)
    inputs = jnp.concatenate([clean, masks], axis=1)

    rows = t + blocks
    place, sees = np.zeros((b, rows), np.int32), np.zeros((b, rows, rows), bool)
    for i in range(b):
        place[i, :t] = np.arange(t)
        sees[i, :t, :t] = np.tril(np.ones((t, t)))
        for a, n in enumerate(anchors[i]):
            first = t + a * m
            for j in range(m):
                place[i, first + j] = n + 1 + j
                sees[i, first + j, : n + 1] = True
                sees[i, first + j, first : first + j + 1] = True

    def heads(projection, count):
        split = projection(inputs).reshape(b, rows, count, -1).swapaxes(1, 2)
        return jnp.repeat(split, 4 // count, axis=1)

    place = jnp.asarray(place)
    q = rotate(heads(drafter.q_proj, 4), place, DRAFTER.rope)
    k = rotate(heads(drafter.k_proj, 2), place, DRAFTER.rope)
    v = heads(drafter.v_proj, 2)
    scores = jnp.einsum("bhqc,bhkc->bhqk", q, k) / jnp.sqrt(16.0)
    weights = jax.nn.softmax(jnp.where(jnp.asarray(sees)[:, None], scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhqk,bhkc->bqhc", weights, v).reshape(b, rows, -1)
    x = x + drafter.o_proj(mixed)
    x = x + drafter.mlp(drafter.post_attention_layernorm(x))
    logits = drafter.lm_head(drafter.norm(drafter.norm(x)))

    teacher_logits = target.logits(out.hidden)
    teacher, draft = [], []
    for i in range(b):
        for a, n in enumerate(anchors[i].tolist()):
            block = range(t + a * m, t + (a + 1) * m)
            draft.append(logits[i, jnp.array([n, *block])])
            teacher.append(teacher_logits[i, n + 1 : n + 2 + m])
    shape = (*anchors.shape, m + 1, -1)
    return jnp.stack(teacher).reshape(shape), jnp.stack(draft).reshape(shape)


def efficient(params, target_params, tokens, anchors, _):
    return anchored_logits(TARGET, target_params, DRAFTER, params, tokens, anchors)


def logits_and_gradients(logits, anchored, prefixes):
    target_params, params, tokens, anchors = anchored

    def loss(params):
        both = logits(params, target_params, tokens, anchors, prefixes)
        return annealed_kl(*both, gamma=0.6), both

    with jax.default_matmul_precision("highest"):
        (_, both), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return both, gradients


@pytest.mark.parametrize("literal", [one_anchor_at_a_time, dense])
def test_anchored_logits(anchored, prefixes, literal):
    ours, our_gradients = logits_and_gradients(efficient, anchored, prefixes)
    theirs, their_gradients = logits_and_gradients(literal, anchored, prefixes)
    for our, their in zip(ours, theirs, strict=True):
        assert our.shape == (2, 2, 4, 61)
        assert np.std(np.asarray(our), axis=-1).min() > 0.5
        scale = float(jnp.max(jnp.abs(their)))
        np.testing.assert_allclose(our / scale, their / scale, rtol=0, atol=1e-5)
    leaves = jax.tree.leaves_with_path(our_gradients)
    for (path, our), their in zip(leaves, jax.tree.leaves(their_gradients), strict=True):
        scale = float(jnp.max(jnp.abs(their)))
        assert scale > 1e-4, path
        np.testing.assert_allclose(our / scale, their / scale, rtol=0, atol=1e-5, err_msg=str(path))


def test_no_gradient_reaches_the_target(anchored):
    target_params, params, tokens, anchors = anchored

    def loss(target_params):
        return annealed_kl(*efficient(params, target_params, tokens, anchors, None), 0.6)

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(target_params)):
        assert not np.asarray(leaf).any()


def test_lm_loss(anchored, prefixes):
    params, _, tokens, _ = anchored
    losses = []
    for n in range(1, tokens.shape[1]):
        probability = softmax(np.asarray(prefixes[n][1], np.float64))
        losses.append(-np.log(probability[[0, 1], tokens[:, n]]))
    assert float(lm_loss(TARGET, params, tokens)) == pytest.approx(np.mean(losses), rel=1e-5)


def test_held_out_loss_is_the_mean_over_whole_windows(anchored):
    params, *_ = anchored
    tokens = np.random.default_rng(1).integers(0, 61, 45).astype(np.uint16)
    evaluate = held_out_loss(TARGET, tokens, length=9, batch=2)
    windows = jnp.asarray(tokens[:40].reshape(4, 10), jnp.int32)
    expected = float(lm_loss(TARGET, params, windows))
    assert evaluate(params) == {"held_out_loss": pytest.approx(expected, rel=1e-5)}
