"""Appending to KV caches; decoding leaves the same cache contents as a prefill."""

import jax
import numpy as np
import pytest
from conftest import MAX_LENGTH, SEED, Oracle, sequences

from dart_jax.decoding.loop import start
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.step import step
from dart_jax.models.cache import append

OPTIONS = Options(seed=SEED)


@pytest.mark.parametrize("seed", range(5))
def test_append_writes_the_chosen_rows_after_each_sequence(seed):
    rng = np.random.default_rng(seed)

    def layers(length):
        return tuple(
            tuple(rng.normal(size=(3, 2, length, 4)).astype(np.float32) for _ in range(2))
            for _ in range(2)
        )

    cache, rows = layers(10), layers(5)
    index = rng.integers(0, 5, (3, 4)).astype(np.int32)
    length = rng.integers(0, 7, 3).astype(np.int32)  # 6 + 4 rows fill it
    written = jax.jit(append)(cache, rows, index, length)
    for b in range(3):
        for old, new in zip(jax.tree.leaves(cache), jax.tree.leaves(rows), strict=True):
            old[b, :, length[b] : length[b] + 4] = new[b][:, index[b]]
    jax.tree.map(np.testing.assert_array_equal, written, cache)


def test_capacity_has_room_for_a_path_after_the_last_token(models):
    plain = DecodeConfig(models.target)
    dart = DecodeConfig(models.target, models.drafter, nodes=60)
    assert [plain.capacity(n) for n in (1, 63, 64)] == [64, 64, 128]
    assert [dart.capacity(n) for n in (1, 55, 56)] == [64, 64, 128]


@pytest.mark.long
def test_decoding_leaves_the_caches_of_a_prefill(models, prompts, plain):
    config = DecodeConfig(models.target, models.drafter, nodes=60)
    oracle = Oracle(config, sequences(prompts, plain(Sampling()).tokens))

    def check(state, decoded):
        """All tokens except the last, the root, are in the caches; a prefill draws it again."""
        read = [tokens[:-1] for tokens in decoded]
        fresh, _ = start(
            config,
            models.params,
            Prompts.pad(read, 1, MAX_LENGTH, models.target.vocab_size),
            OPTIONS,
        )
        assert state.length.tolist() == [len(tokens) for tokens in read]
        np.testing.assert_array_equal(state.context, fresh.context)
        for ours, theirs in zip(
            jax.tree.leaves((state.target_cache, state.draft_state)),
            jax.tree.leaves((fresh.target_cache, fresh.draft_state)),
            strict=True,
        ):
            for b, tokens in enumerate(read):
                np.testing.assert_allclose(
                    ours[b, :, : len(tokens)], theirs[b, :, : len(tokens)], rtol=0, atol=1e-5
                )

    state, packed = start(config, models.params, prompts, OPTIONS)
    packed = np.asarray(packed)
    decoded = sequences(prompts, config.host_buffer.emitted(packed))
    steps = 0
    while config.host_buffer.active(packed):
        state, packed = step(config, models.params, state, oracle(packed))
        packed = np.asarray(packed)
        emitted = config.host_buffer.emitted(packed)
        decoded = [np.concatenate(row) for row in zip(decoded, emitted, strict=True)]
        steps += 1
        if steps == 2:
            check(state, decoded)
    check(state, decoded)
    assert [len(tokens) for tokens in decoded] == [MAX_LENGTH] * 4
