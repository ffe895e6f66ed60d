"""The objective: the efficient implementation against the literal one, and against decoding."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import literal_objective as literal
import numpy as np
import pytest
from tiny_configs import ALL, DART, EAGLE3, TARGET, VOCABULARY, copied, log_softmax, random_params

from dart_jax.errors import UserError
from dart_jax.models.kernels.matmul import cast
from dart_jax.models.networks.pure import bind
from dart_jax.models.platform.weights import WeightsForm, untie
from train.data.batch import Batch, causal, positions
from train.evaluation.acceptance import Agreement
from train.objective.drafter_shape import DrafterShape
from train.objective.loss import DrafterLoss, Objective, draw_anchors, num_valid_anchors
from train.objective.predictions import Frozen, PackedForward, supervised_runs, valid_predictions
from train.teacher import teacher


@pytest.fixture(scope="module")
def batch():
    """Two rows: four documents, the third shorter than a block, and padding; a long one and a
    short one. Most tokens are supervised."""
    rng = np.random.default_rng(0)
    document = np.array([[1] * 7 + [2] * 9 + [3] * 3 + [0] * 5, [1] * 20 + [2] * 4], np.int32)
    tokens = rng.integers(0, VOCABULARY, document.shape).astype(np.int32)
    return Batch(tokens, document, rng.random(document.shape) < 0.8)


@pytest.fixture(scope="module")
def target():
    return random_params(TARGET, 1)


def frozen(target, ids=ALL):
    return Frozen(target, jnp.asarray(ids))


def loss_of(drafter, chunk=8, steps=None, **objective):
    steps = drafter.num_positions if steps is None else steps
    return DrafterLoss(PackedForward(TARGET, drafter, steps, chunk), Objective(**objective))


def assert_close(ours, theirs):
    """Within 1e-5 of the largest entry of each leaf; no leaf is nearly 0."""
    for (path, our), their in zip(
        jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True
    ):
        scale = float(jnp.max(jnp.abs(their)))
        assert scale > 1e-4, path
        np.testing.assert_allclose(our / scale, their / scale, rtol=0, atol=1e-5, err_msg=str(path))


# Exactness

FEW = np.sort(np.random.default_rng(1).permutation(VOCABULARY)[:40]).astype(np.int32)
SOME = np.array([[1, 4, 8, 20], [0, 3, 7, 18]], np.int32)


PAIRS = dataclasses.replace(DART, draft_length=3, pair_rank=5)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(
    ("drafter", "ids", "anchors"),
    [
        (DART, ALL, None),
        (DART, ALL, SOME),
        (dataclasses.replace(DART, draft_length=1), ALL, None),
        (dataclasses.replace(DART, draft_length=2, shifted=False), ALL, None),
        (dataclasses.replace(PAIRS, draft_vocab_size=40), FEW, None),
        (PAIRS, ALL, SOME),
        (DART.with_window(5), ALL, None),  # shorter than documents, and than a block
        (PAIRS.with_window(3), ALL, None),
        (PAIRS.with_window(2), ALL, SOME),
    ],
)
def test_the_efficient_way_is_exact(batch, target, drafter, ids, anchors):
    """Losses and gradients, with chunks that do not divide the row and several documents; where
    there are pair scores, also theirs alone, with the rest of the drafter frozen."""
    loss = loss_of(drafter, chunk=5 if anchors is None else 3, gamma=0.7)

    def check(params, given):
        ours, theirs = compared(loss, given, batch, anchors)
        assert_close(ours(params, batch), theirs(params, batch))

    params, given = random_params(drafter, 2), frozen(target, ids)
    check(params, given)
    if drafter.pair_rank:
        rest = {name: leaf for name, leaf in params.items() if name != "pairs"}
        check({"pairs": params["pairs"]}, given._replace(drafter=rest))


@pytest.mark.parametrize("drafter", [DART, PAIRS, EAGLE3], ids=["dart", "pairs", "eagle3"])
def test_thinned_positions_have_the_same_mean(batch, target, drafter):
    """Losses and gradients with every anchor once at every place, against all predictions after
    all of them."""
    params, given = random_params(drafter, 2), frozen(target)
    loss = loss_of(drafter, chunk=3, steps=getattr(drafter, "num_positions", 5), anchors=8)
    thin = dataclasses.replace(loss, objective=dataclasses.replace(loss.objective, thin=True))
    anchors = np.array([[1, 2, 4, 7, 8, 9, 10, 20], [0, 2, 3, 5, 7, 9, 15, 18]], np.int32)
    run = jax.jit(
        jax.value_and_grad(lambda params, anchors: thin.total(params, given, batch, anchors))
    )
    each = [run(params, np.roll(anchors, n, axis=1)) for n in range(8)]
    assert len({float(value) for value, _ in each}) == 8
    mean = jax.tree.map(lambda *parts: sum(parts) / 8, *each)
    whole = jax.value_and_grad(lambda params: loss.total(params, given, batch, anchors))
    assert_close(mean, jax.jit(whole)(params))


def compared(loss, given, batch, anchors):
    """Loss and gradient of parameters, ours and literally."""
    at = every_row(batch) if anchors is None else jnp.asarray(anchors)

    def ours(params, batch):
        return loss.total(params, given, batch, None if anchors is None else at)

    def theirs(params, batch):
        return literal.loss(loss, params, given, batch, at)[0]

    return jax.jit(jax.value_and_grad(ours)), jax.jit(jax.value_and_grad(theirs))


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("anchors", [None, SOME], ids=["all", "some"])
def test_a_draft_vocabulary_is_taught_exactly(batch, monkeypatch, anchors):
    """Losses and gradients against the target's probabilities of all tokens, whose logits are
    scaled and capped; whether the target's outputs were computed earlier or not, in chunks."""
    target = dataclasses.replace(
        TARGET, tie_word_embeddings=False, logits_scaling=0.5, final_logit_softcapping=3.0
    )
    drafter = dataclasses.replace(DART, draft_length=1, draft_vocab_size=40)
    loss = DrafterLoss(PackedForward(target, drafter, 2, max_chunk=5), Objective())
    params, given = random_params(drafter, 2), frozen(random_params(target, 1), FEW)
    monkeypatch.setattr(teacher, "LOGITS", 5 * 4 * 2 * VOCABULARY)  # 5 tokens of 2 rows
    ours, theirs = compared(loss, given, batch, anchors)
    expected = theirs(params, batch)
    assert_close(ours(params, batch), expected)
    outputs = loss.forward.run_target(given, batch).outputs
    assert_close(ours(params, batch._replace(outputs=outputs)), expected)


@pytest.mark.parametrize("form", ["tied", "untied", "packed"])
def test_a_head_of_fewer_tokens(target, form):
    """However the weights are stored."""
    config, params = TARGET, target
    if form != "tied":
        packed = WeightsForm(fused=True, tiles=form == "packed")
        config, params = untie(config, copied(params), packed)
        params = packed.prepare(params)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 32)), jnp.float32)
    expected = bind(TARGET, target).logits(hidden)
    fewer = bind(*teacher.with_vocabulary(config, params, jnp.asarray(FEW))).logits(hidden)
    np.testing.assert_allclose(fewer, expected[..., FEW], rtol=1e-5, atol=1e-5)
    log_total, best = teacher.over_vocabulary(config, params, hidden)
    np.testing.assert_allclose(log_total, jax.nn.logsumexp(expected, axis=-1), rtol=1e-5)
    assert (best == expected.argmax(-1)).all()


def test_agreement_with_a_target_of_more_tokens(batch, target):
    """Counted by hand: the target's most likely token need not be in the draft vocabulary."""
    drafter = dataclasses.replace(DART, draft_length=1, draft_vocab_size=40)
    params, given = random_params(drafter, 2), frozen(target, FEW)
    forward = PackedForward(TARGET, drafter, 2, max_chunk=5)
    rows = SimpleNamespace(rows=2, batch=lambda numbers: Batch(*(x[numbers] for x in batch[:3])))
    figures = Agreement(forward, given, rows, 2)(params)

    anchors = every_row(batch, 22)
    data = jax.jit(forward.run_target)(given, batch)
    literally = jax.jit(literal.draft_logits, static_argnums=0)
    logits = literally(drafter, params, data, anchors, jnp.asarray(FEW))
    q = np.exp(log_softmax(np.asarray(logits)))
    p = np.exp(log_softmax(np.asarray(bind(TARGET, target).logits(data.outputs.hidden))))
    found = []
    for t in (1, 2):
        taught, drafted = p[:, t : t + 22], q[:, :, t - 1]
        best, order = taught.argmax(-1)[..., None], FEW[np.argsort(-drafted, axis=-1)]
        known = taught[..., FEW]
        loss = (known * np.log(known / known.sum(-1, keepdims=True) / drafted)).sum(-1)
        values = (order[..., 0] == best[..., 0], loss)
        valid = valid_predictions(batch.document, supervised_runs(batch.supervised), anchors, t)
        found.append([each[np.asarray(valid)].mean() for each in values])
        assert not np.isin(best, FEW).all()
    for t, (first, _) in enumerate(found, 1):
        assert figures[f"alpha_{t}"] == pytest.approx(first)
    assert figures["held_out_loss"] == pytest.approx(np.mean([x[1] for x in found]), rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("drafter", [DART, DART.with_window(4)])
def test_training_sees_what_decoding_computes(batch, target, drafter):
    """After one anchor: the drafter over only its document's prefix, as in drafting."""
    row, n, start = 0, 13, 7  # the seventh token of the second document
    params = random_params(drafter, 2)
    prefix = jnp.asarray(batch.tokens[row : row + 1, start : n + 1])
    alone = jnp.ones_like(prefix)
    module = bind(TARGET, target)
    out = module(prefix, positions(alone), causal(alone))
    after = module.embed(jnp.asarray(batch.tokens[row : row + 1, start + 1 : n + 2]))
    last = jnp.array([n - start], jnp.int32)
    alone_drafter = bind(drafter, params)
    logits = alone_drafter.head(alone_drafter(out.features, after, positions(alone), last)[0])

    data = PackedForward(TARGET, drafter, 8).run_target(frozen(target), batch)
    anchors = jnp.array([[n], [0]], jnp.int32)
    literally = jax.jit(literal.draft_logits, static_argnums=0)
    packed = literally(drafter, params, data, anchors, jnp.asarray(ALL))
    np.testing.assert_allclose(packed[row, 0], logits[0], rtol=0, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("window", [None, 2, 4])
def test_eagle3_is_trained_as_it_drafts(batch, target, window):
    """Its steps against its own layer, row by row, with growing keys as in drafting."""
    config = EAGLE3.with_window(window)
    params, steps = random_params(config, 2), 3
    drafter, module = bind(config, params), bind(TARGET, target)
    loss = loss_of(config, steps=steps, gamma=0.8)
    expected = 0.0
    for row, n in ((0, 2), (0, 9), (1, 6)):
        start = int(np.flatnonzero(batch.document[row] == batch.document[row, n])[0])
        tokens = jnp.asarray(batch.tokens[row : row + 1, start:])
        alone = jnp.ones_like(tokens)
        out = module(tokens, positions(alone), causal(alone))
        at = n - start
        hidden = drafter.fc(out.features[:, : at + 1])
        inputs = drafter.join(module.embed(tokens[:, 1 : at + 2]), hidden)
        seen = [drafter.keys_at(inputs, positions(alone)[:, : at + 1])]
        hidden, inputs = hidden[:, -1:], inputs[:, -1:]
        for t in range(1, steps + 1):
            place = jnp.array([[at + t - 1]], jnp.int32)
            if t > 1:
                seen.append(drafter.keys_at(inputs, place))
            least, ends = 0, np.cumsum([keys[0].shape[2] for keys in seen])
            if window is not None:
                least = ends[-1] - window
            in_window = [
                (*keys, jnp.asarray(np.arange(end - keys[0].shape[2], end) >= least)[None, None])
                for keys, end in zip(seen, ends, strict=True)
            ]
            hidden = drafter(hidden, inputs, place, in_window)
            if bool(
                valid_predictions(
                    batch.document, supervised_runs(batch.supervised), jnp.array([[n]] * 2), t
                )[row, 0]
            ):
                draft = np.asarray(jax.nn.log_softmax(drafter.logits(hidden)))[0, 0]
                taught = module.logits(out.hidden[:, at + t : at + t + 1])
                taught = np.asarray(jax.nn.log_softmax(taught))[0, 0]
                expected += 0.8 ** (t - 1) * (np.exp(taught) * (taught - draft)).sum()
            following = tokens[:, at + 1 + t : at + 2 + t]
            inputs = drafter.join(module.embed(following), hidden)
    anchors = jnp.array([[2, 9], [6, 23]], jnp.int32)  # the last has nothing to predict
    total = jax.jit(lambda params: loss.total(params, frozen(target), batch, anchors))(params)
    assert expected > 1
    assert float(total) == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("half", ["target", "drafter", "both"])
def test_models_of_different_dtypes(batch, target, half, dtype):
    """Each computes in its own dtype; the losses agree within its precision."""
    loss = loss_of(dataclasses.replace(DART, draft_length=1))
    params = random_params(loss.forward.drafter, 2)

    def total(params, given):
        return loss(params, frozen(given), batch, jax.random.key(0))[0]

    exact = float(jax.jit(total)(params, target))
    run = jax.jit(jax.value_and_grad(total))
    ours = cast(params, "float32" if half == "target" else dtype)
    value, gradient = run(ours, cast(target, "float32" if half == "drafter" else dtype))
    assert float(value) == pytest.approx(exact, rel=0.1 if dtype == "bfloat16" else 0.01)
    dtypes = jax.tree.map(lambda x: x.dtype, (gradient, ours))
    assert dtypes[0] == dtypes[1]
    expected = jax.tree.leaves(jax.jit(jax.grad(total))(params, target))
    for got, exact in zip(jax.tree.leaves(gradient), expected, strict=True):
        size = jnp.abs(exact).max()
        np.testing.assert_allclose(got, exact, rtol=0, atol=0.2 * size + 1e-6)


# Which predictions count


def every_row(batch, count=None):
    rows, width = batch.tokens.shape
    return jnp.broadcast_to(
        jnp.arange(count or width, dtype=jnp.int32)[None], (rows, count or width)
    )


def test_what_counts(batch):
    run, anchors = supervised_runs(batch.supervised), every_row(batch)
    rows, width = batch.tokens.shape

    def expected(row, n, t):
        document, reach = batch.document[row], range(n + 2, n + 2 + t)
        if document[n] == 0 or reach[-1] >= width or document[reach[-1]] != document[n]:
            return False
        return all(batch.supervised[row][i] for i in reach)

    for t in range(1, 9):
        counts = valid_predictions(batch.document, run, anchors, t)
        by_hand = [[expected(row, n, t) for n in range(width)] for row in range(rows)]
        assert np.asarray(counts).tolist() == by_hand
        if t == 1:
            assert float(num_valid_anchors(batch, None)) == np.sum(by_hand) > 0
            assert float(num_valid_anchors(batch, anchors[:, :5])) == np.sum(
                np.array(by_hand)[:, :5]
            )


def test_anchors_are_drawn_among_those_that_count(batch):
    drawn = np.asarray(draw_anchors(jax.random.key(3), batch, 6))
    again = np.asarray(draw_anchors(jax.random.key(4), batch, 6))
    assert drawn.shape == (2, 6)
    assert drawn.dtype == np.int32
    assert (drawn != again).any()
    for anchors in (drawn, again):
        assert (np.diff(anchors) > 0).all()
        assert valid_predictions(
            batch.document, supervised_runs(batch.supervised), jnp.asarray(anchors), 1
        ).all()
    # All rows where more are asked for than there are.
    everything = draw_anchors(jax.random.key(3), batch, 100)
    assert np.asarray(everything).tolist() == [[*range(24)]] * 2


# Options


@pytest.mark.parametrize(
    "bad",
    [
        {"gamma": 0},
        {"gamma": 1.5},
        {"anchors": 0},
        {"thin": True},
        {"thin": True, "anchors": 8, "position_weights": "path"},
    ],
)
def test_settings_out_of_range(bad):
    with pytest.raises(UserError, match=f"--{next(iter(bad))}"):
        Objective(**bad)


def test_the_size_of_the_draft_vocabulary():
    small, large = (dataclasses.replace(TARGET, vocab_size=size) for size in (64_000, 64_001))
    assert [DrafterShape().vocabulary(target) for target in (small, large)] == [None, 32_000]
    assert DrafterShape(draft_vocab=0).vocabulary(large) is None
    assert DrafterShape(draft_vocab=500).vocabulary(small) == 500
    assert DrafterShape(method="eagle3").config(large).draft_vocab_size == 32_000
