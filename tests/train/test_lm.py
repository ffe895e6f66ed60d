"""Training of the demo's language models: token windows and next-token loss."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_configs import TARGET, VOCABULARY, log_softmax, random_params

from dart_jax.models.pure import bind
from train.data.batch import causal, positions
from train.recipes.language_model import TokenWindows, held_out_loss, lm_losses


@pytest.mark.parametrize(("tokens", "batch"), [(101, 3), (100, 3), (57, 1)])
def test_windows_cover_the_stream_once_an_epoch(tokens, batch):
    """Each time from another phase; a function of seed and step."""
    length, stream = 8, np.arange(tokens, dtype=np.uint16)
    windows, again = (TokenWindows(stream, batch, length, seed=5) for _ in "12")
    per_epoch = (tokens - length) // length // batch
    made = [windows(step) for step in range(3 * per_epoch)]
    starts = []
    for epoch in range(3):
        rows = np.concatenate(made[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert rows.dtype == np.int32
        assert rows.tolist() == [list(range(row[0], row[0] + length)) for row in rows.tolist()]
        # Consecutive from a random phase: no token twice, none left out between them.
        assert np.diff(np.sort(rows[:, 0])).tolist() == [length] * (len(rows) - 1)
        assert 0 <= rows.min() < length
        starts.append(rows[:, 0].tolist())
    assert starts[0] != starts[1] != starts[2]
    backwards = [again(step) for step in reversed(range(3 * per_epoch))]
    np.testing.assert_array_equal(made, backwards[::-1])
    np.testing.assert_array_equal(windows(1, slice(0, 1)), made[1][:1])
    others = (TokenWindows(*x, seed=5) for x in ((stream, batch, 9), (stream + 1, batch, 8)))
    assert len({each.fingerprint for each in (windows, again, *others)}) == 3


@pytest.fixture(scope="module")
def params():
    return random_params(TARGET, 1)


@pytest.fixture(scope="module")
def tokens():
    return jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (2, 10)), jnp.int32)


def lm_loss(params, tokens):
    total, count = lm_losses(TARGET, params, tokens)
    return float(total / count)


@pytest.mark.long
def test_lm_loss(params, tokens):
    """Against each token's probability after its prefix only."""
    losses = []
    for n in range(1, tokens.shape[1], 3):
        target = bind(TARGET, params)
        alone = jnp.ones((2, n), jnp.int32)
        out = target(tokens[:, :n], positions(alone), causal(alone))
        log_probs = log_softmax(np.asarray(target.logits(out.hidden[:, -1]), np.float64))
        losses.append(-log_probs[[0, 1], np.asarray(tokens[:, n])])
        whole = lm_loss(params, tokens[:, : n + 1])
        before = lm_loss(params, tokens[:, :n]) if n > 1 else 0.0
        assert whole * n - before * (n - 1) == pytest.approx(np.mean(losses[-1]), rel=1e-4)


def test_held_out_loss_is_the_mean_over_whole_windows(params):
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 45).astype(np.uint16)
    evaluate = held_out_loss(TARGET, tokens, length=9, batch=2)
    windows = jnp.asarray(tokens[:40].reshape(4, 10), jnp.int32)
    expected = lm_loss(params, windows)
    assert evaluate(params) == {"held_out_loss": pytest.approx(expected, rel=1e-5)}
