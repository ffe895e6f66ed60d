"""Draws with the noise of a seed and positions, as the decode step makes them."""

from dart_jax.decoding.sampling import draw, gumbel_noise


def draw_at(sampling, logits, seed, position, levels):
    """As `draw`, with the noise of `position`, int32 [B, P]."""
    noise = gumbel_noise(seed, position, logits.shape[-1])
    return draw(sampling, logits, noise, levels)
