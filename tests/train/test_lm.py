"""Training of the demo's language models: token windows and next-token loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_configs import TARGET, VOCABULARY, log_softmax, random_params

from dart_jax.models.networks.pure import bind
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


def test_the_loss_of_next_tokens():
    """And its mean over whole windows."""
    params = random_params(TARGET, 1)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 45).astype(np.uint16)
    windows = jnp.asarray(tokens[:40].reshape(4, 10), jnp.int32)
    alone = jnp.ones((4, 9), jnp.int32)

    def logits(params):
        target = bind(TARGET, params)
        return target.logits(target(windows[:, :-1], positions(alone), causal(alone)).hidden)

    log_probs = log_softmax(np.asarray(jax.jit(logits)(params), np.float64))
    expected = -np.take_along_axis(log_probs, windows[:, 1:, None], axis=-1)
    total, count = jax.jit(lambda params: lm_losses(TARGET, params, windows))(params)
    assert (float(total), float(count)) == (pytest.approx(expected.sum(), rel=1e-5), 36)
    evaluate = held_out_loss(TARGET, tokens, length=9, batch=2)
    assert evaluate(params) == {"held_out_loss": pytest.approx(expected.mean(), rel=1e-5)}
