"""Draws with the noise of a seed and positions, as the decode step makes them."""

import jax.numpy as jnp

from dart_jax.decoding.sampling import Noise, draw, gumbel_noise, row_keys


def keys_of(seed, rows):
    """The keys of a batch's rows, as `generate` numbers them."""
    return row_keys(jnp.uint32(seed), jnp.arange(rows, dtype=jnp.int32))


def noise_of(seed, position, vocab):
    """`gumbel_noise` of such a batch, position int32 [B, P]."""
    return gumbel_noise(keys_of(seed, len(position)), position, vocab)


def draw_at(sampling, logits, seed, position, levels, core=False):
    """As `draw`, with the noise of `position`, int32 [B, P], consecutive in each row."""
    noise = Noise(keys_of(seed, len(position)), position[:, 0])
    if not core:
        noise = noise.made(position.shape[1], logits.shape[-1])
    return draw(sampling, logits, noise, levels)
