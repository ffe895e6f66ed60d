"""Attention of new rows, to each other and to a cached prefix."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from dart_jax.models.attention import mosaic, native, triton
from dart_jax.models.attention.segments import PLAIN, Prefix, Scoring, Segment, attend_dense
from dart_jax.models.cpu import zeros_if_unused
from dart_jax.models.kernels.choices import AttentionKernel
from dart_jax.models.kernels.matmul import narrowed


def attend(
    segments: Sequence[Segment],
    prefix: Prefix | None = None,
    scoring: Scoring = PLAIN,
    kernel: AttentionKernel = "dense",
) -> jax.Array:
    """Grouped-query attention with a single softmax over the keys of all segments and the prefix.

    Args:
      segments: new rows. Every row must see at least one key. Without a prefix they may hold the
        same queries at different rotary positions.
      prefix: cached rows, seen by the first segment's queries, if any.
      scoring: how scores are computed.
      kernel: what computes it. Attention without a prefix, and sizes that the kernel is not made
        for (see their `fits`), are always computed in plain JAX.

    Returns:
      [B, T, H * h] in the queries' dtype, or float16 as keys and values.
    """
    segments = [segment._replace(q=narrowed(segment.q, segment.k.dtype)) for segment in segments]
    dense = [segment._replace(v=zeros_if_unused(segment.v)) for segment in segments]
    if prefix is None:
        return attend_dense(dense, scoring)
    q = segments[0].q
    if kernel in ("triton", "interpret") and triton.fits(q, prefix):
        interpret = kernel == "interpret"
        return triton.attend_triton(_join(segments), prefix, scoring, interpret=interpret)
    if kernel == "native" and native.fits(q, prefix):
        return native.attend_native(_join(segments), prefix, scoring)
    if kernel in ("mosaic", "interpret-mosaic") and mosaic.fits(q, prefix):
        interpret = kernel == "interpret-mosaic"
        return mosaic.attend_mosaic(_join(segments), prefix, scoring, interpret=interpret)
    # The C++ core, which does not compute this head size, still wrote the pool, or has not yet.
    plain = prefix.in_one_piece(finite=kernel != "native")
    return attend_dense([Segment(q, plain.k, plain.v, plain.mask), *dense], scoring)


def _join(segments: Sequence[Segment]) -> Segment:
    """One segment with the keys of all."""
    first, *others = segments
    if not others:
        return first
    shape = (first.q.shape[0], first.q.shape[2])
    masks = [jnp.broadcast_to(s.mask, (*shape, s.k.shape[2])) for s in segments]
    return Segment(
        first.q,
        jnp.concatenate([s.k for s in segments], axis=2),
        jnp.concatenate([s.v for s in segments], axis=2),
        jnp.concatenate(masks, axis=2),
    )
