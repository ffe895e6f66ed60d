"""Random inputs of attention, for tests of its kernels."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from dart_jax.models.attention.segments import Prefix, Segment


@dataclasses.dataclass(frozen=True)
class AttentionShape:
    """Sizes of queries, new keys and cache, and how scores are computed."""

    batch: int
    heads: int
    kv_heads: int
    rows: int
    capacity: int
    head_dim: int = 64
    window: int | None = None
    cap: float | None = None
    dtype: str = "float32"


def attention_arrays(shape, seed, length=None):
    """New rows, a prefix whose unused rows are random, and the same with NaN in these."""
    rng = np.random.default_rng(seed)

    def normal(*size):
        return jnp.asarray(rng.standard_normal(size), shape.dtype)

    b, t, h = shape.batch, shape.rows, shape.head_dim
    mask = np.tril(rng.random((b, t, t)) < 0.5) | np.eye(t, dtype=bool)
    new = Segment(
        normal(b, shape.heads, t, h),
        normal(b, shape.kv_heads, t, h),
        normal(b, shape.kv_heads, t, h),
        jnp.asarray(mask),
    )
    if length is None:
        length = rng.integers(0, shape.capacity + 1, b)
    length = jnp.broadcast_to(jnp.asarray(length, jnp.int32), (b,))
    first = None
    if shape.window is not None:
        depth = jnp.asarray(rng.integers(0, max(t, 4), (b, t)), jnp.int32)
        first = jnp.maximum(length[:, None] + depth - shape.window + 1, 0)
    empty = (jnp.arange(shape.capacity)[None] >= length[:, None])[:, None, :, None]
    k, v = (normal(b, shape.kv_heads, shape.capacity, h) for _ in range(2))
    prefix = Prefix(k, v, length, first)
    undefined = (jnp.where(empty, jnp.nan, x) for x in (k, v))
    return new, prefix, Prefix(*undefined, length, first)
