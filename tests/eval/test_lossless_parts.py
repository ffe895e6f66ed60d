"""Parts of eval.lossless: literal sampler, distribution test, verdicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dart_jax.decoding.logits import penalize_repetition
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.sampling import filter_logits
from dart_jax.engine.request import Output
from eval.lossless.distribution import Fit, Samples, chi_square
from eval.lossless.divergence import ENDED, Probe, examine
from eval.lossless.literal_sampling import (
    edge,
    kept,
    may_win,
    scale,
    softmax,
)
from eval.methods.decoding import Generation
from tests.support.draws import noise_of

CUTS = [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8, "min_p": 0.1}]


def logits_of(seed, vocab=40):
    return np.random.default_rng(seed).normal(0, 2, vocab).astype(np.float32)


# The literal sampler


@pytest.mark.parametrize("cut", CUTS)
def test_it_is_the_samplers(cut):
    context = np.array([3, 5, 5, 7])
    sampling, repeated = Sampling(0.8, repetition_penalty=1.3, **cut), np.isin(range(40), context)
    for logits in map(logits_of, range(5)):
        scaled = scale(logits, sampling, context)
        penalized = penalize_repetition(
            jnp.float32(1.3), jnp.asarray(logits), jnp.asarray(repeated)
        )
        np.testing.assert_allclose(scaled, np.asarray(penalized) / 0.8, rtol=1e-6)
        theirs = filter_logits(sampling.values(), penalized[None] / jnp.float32(0.8))[0]
        np.testing.assert_array_equal(kept(scaled, sampling), np.isfinite(theirs))
        p = softmax(np.where(kept(scaled, sampling), scaled, -np.inf))
        np.testing.assert_allclose(p, jax.nn.softmax(theirs), rtol=1e-5)


@pytest.mark.parametrize("cut", CUTS)
def test_what_rounding_can_do_to_a_cut(cut):
    """Random rounding stays within the predictions; without rounding the predictions are exact."""
    rng, sampling, eps = np.random.default_rng(0), Sampling(1.0, **cut), 0.3
    changed = 0
    for seed in range(10):
        scaled = logits_of(seed).astype(np.float64)
        inside = kept(scaled, sampling)
        always, maybe = edge(scaled, sampling, eps)
        for _ in range(50):
            after = kept(scaled + rng.uniform(-eps, eps, 40), sampling)
            changed += (after != inside).any()
            assert not (always & ~after).any()
            assert not (after & ~maybe).any()
        for exact in edge(scaled, sampling, 0):
            np.testing.assert_array_equal(exact, inside)
    assert changed > 50


def test_who_may_win():
    scaled, noise, plain = np.array([2.0, 1.9, 1.0]), np.zeros(3), Sampling(1.0)
    assert [may_win(scaled, noise, plain, t, 0.0) for t in range(3)] == [True, False, False]
    assert [may_win(scaled, noise, plain, t, 0.06) for t in range(3)] == [True, True, False]
    # If token 0 may be cut, token 1 may win however far it is behind.
    noise = np.array([0.0, 0.0, 5.0])
    cut = Sampling(1.0, top_k=2)
    assert not may_win(scaled, noise, cut, 2, 0.4)
    assert may_win(scaled, noise, cut, 2, 0.46)
    assert may_win(scaled, noise, cut, 0, 0.46)


# The test of the distribution


def test_chi_square_is_uniform_on_its_own_distribution():
    def p_of(draws):
        chi2, dof = chi_square(draws, p)
        return Fit(0, chi2=chi2, dof=dof).p

    rng, p = np.random.default_rng(0), softmax(logits_of(0).astype(float))
    ps = [p_of(rng.multinomial(500, p)) for _ in range(400)]
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01
    tempered = p**1.3 / (p**1.3).sum()
    assert max(p_of(rng.multinomial(2000, tempered)) for _ in range(20)) < 1e-4


def fit_of(logits, tokens, sampling):
    """The test of tokens drawn after one text."""
    samples, rows = Samples(), [np.array([9, token]) for token in tokens]
    samples.add(np.array([5]), Generation([Output(row, np.ones(2, int)) for row in rows], {}))
    return samples.fit(lambda text: Probe(logits, 1e-5, True), sampling)


def test_draws_that_the_filters_cut():
    """A single token that they cut whatever the rounding is enough; which of two nearly tied tokens
    is kept, rounding decides."""
    logits = np.array([3.0, 2.5, 2.0, 2.0 - 1e-6, 0.0], np.float32)
    for on_edge, forbidden in (([2] * 100, []), ([3] * 100, []), ([], [4])):
        tokens = [*[0] * 187, *[1] * 113, *on_edge, *forbidden]
        fit = fit_of(logits, tokens, Sampling(1.0, top_k=3))
        counts = (fit.positions, fit.draws, fit.at_edge, fit.forbidden, fit.dof)
        assert counts == (1, len(tokens), len(on_edge), len(forbidden), 1)
        assert fit.p > 0.9
        assert bool(fit.fault) is bool(forbidden)


# A single divergence


def probe_of(logits, rounding=0.01, plausible=True):
    return lambda text: Probe(np.array(logits, np.float32), rounding, plausible)


@pytest.mark.parametrize(
    ("second", "dart", "verdict"),
    [(1.0, 1, "tie"), (0.985, 1, "tie"), (0.97, 1, "DIVERGES"), (1.0, 2, "DIVERGES")],
)
def test_greedy_verdicts(second, dart, verdict):
    prober = probe_of([1.0, second, 0.0])
    texts = {"text": np.array([7]), "plain": np.array([4, 4, 0]), "dart": np.array([4, 4, dart])}
    result = examine(prober, Sampling(), 0, prompt=3, row=1, **texts)
    assert (result.prompt, result.new_token) == (3, 2)
    assert (result.plain, result.dart, result.verdict) == (0, dart, verdict)
    implausible = probe_of([1.0, second, 0.0], plausible=False)
    assert not examine(implausible, Sampling(), 0, prompt=3, row=1, **texts).tie
    texts["dart"] = texts["plain"][:2]
    result = examine(prober, Sampling(), 0, prompt=3, row=1, **texts)
    assert (result.new_token, result.dart, result.verdict) == (2, ENDED, "DIVERGES")


def test_sampled_verdicts():
    """Scores include the noise of the draw: the logits are chosen to tie with it."""
    noise = np.asarray(noise_of(5, jnp.full((3, 1), 2, jnp.int32), 3)[2, 0])
    texts = {"text": np.array([7]), "plain": np.array([4, 0]), "dart": np.array([4, 1])}
    for margin, tie in ((0.0, True), (0.03, True), (0.05, False)):
        logits = 0.5 * (np.array([margin, 0.0, -9.0]) - noise)
        result = examine(probe_of(logits), Sampling(0.5), 5, prompt=0, row=2, **texts)
        assert result.margin == pytest.approx(margin, abs=1e-6)
        assert result.rounding == pytest.approx(0.02)
        assert result.tie == tie


def test_a_tie_at_the_cut():
    noise = np.asarray(noise_of(0, jnp.full((1, 1), 1, jnp.int32), 4)[0, 0])
    winner = int(np.argmax(noise))
    logits = np.where(np.arange(4) == winner, 0.999, 1.0).astype(np.float32)
    second = int(np.argsort(noise)[-2])
    texts = {"text": np.array([7]), "plain": np.array([second]), "dart": np.array([winner])}
    sampling = Sampling(1.0, top_k=3)
    result = examine(probe_of(logits), sampling, 0, prompt=0, row=0, **texts)
    assert result.verdict == "tie"
    result = examine(probe_of(logits, 1e-5), sampling, 0, prompt=0, row=0, **texts)
    assert result.verdict == "DIVERGES"
