"""Acceptance of a given length, to measure speed without a good drafter or real weights."""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp

from dart_jax.decoding.step import Acceptance
from dart_jax.decoding.tree import DraftTree


@dataclasses.dataclass(frozen=True)
class ImposedTau:
    """Accepts `tau` tokens per verification on average, bonus included, at least 1, rounded to
    three decimals, whether or not the target agrees; the work is the same as if it did.

    After every verification the number of remaining tokens is a multiple of tau, rounded down.
    Only the first verification of a sequence may emit more or fewer, pseudo-randomly, so that the
    average over many sequences is tau. Where fewer nodes are drafted, as in a text's first step, so
    many tokens are emitted and one more.
    """

    tau: float

    def __call__(
        self,
        tree: DraftTree,
        drawn: jax.Array,
        max_depth: int,
        remaining: jax.Array,
        end: jax.Array,
    ) -> Acceptance:
        """Accepts the first nodes of a tree of which the target drew `drawn`, int32 [B, N + 1];
        `remaining` tokens, int32 [B], are to be emitted, and `end`, int32 [B], is the same in all
        steps of a sequence and seeds its pseudo-random choice."""
        b, nodes = tree.tokens.shape
        chex.assert_shape([remaining, end], (b,))
        step = round(1000 * self.tau)
        steps = -(-1000 * remaining // step)
        multiple = steps * step // 1000 == remaining
        more = (1000 * remaining - (steps - 1) * step).astype(jnp.float32) / step
        hashed = (end.astype(jnp.uint32) * jnp.uint32(2654435761)) >> jnp.uint32(16)
        chance = hashed.astype(jnp.float32) / 65536
        steps = jnp.maximum(jnp.where(multiple | (chance < more), steps, steps - 1), 1)
        count = jnp.clip(remaining - (steps - 1) * step // 1000, 1, max_depth + 1)
        count = jnp.minimum(count, 1 + jnp.sum(tree.real[:, 1:], axis=1, dtype=jnp.int32))
        path = jnp.minimum(jnp.arange(max_depth + 1, dtype=jnp.int32), nodes - 1)[None]
        path = jnp.where(path < count[:, None], path, 0)
        return Acceptance(path, jnp.take_along_axis(drawn, path, axis=1), count)
