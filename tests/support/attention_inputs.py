"""Random inputs of attention, for tests of its kernels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.attention.segments import Prefix, Segment
from dart_jax.models.cache import PagedCache


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


def in_pages(cache, size, seed):
    """A cache in pages of `size` rows, which are anywhere in pools; what none has is NaN."""
    b, _, rows, _ = cache[0][0].shape
    each = -(-rows // size)
    pages = np.random.default_rng(seed).permutation(b * each + 2)[: b * each].reshape(b, each)

    def pool(x):
        x = np.pad(x, ((0, 0), (0, 0), (0, each * size - rows), (0, 0)), constant_values=np.nan)
        x = x.reshape(b, x.shape[1], each, size, x.shape[3]).swapaxes(1, 2)
        out = np.full((b * each + 2, *x.shape[2:]), np.nan, x.dtype)
        out[pages] = x
        return jnp.asarray(out)

    return PagedCache(jax.tree.map(pool, cache), jnp.asarray(pages, jnp.int32))


def paged_arrays(shape, size, seed):
    """As `attention_arrays`, with the prefix in pages of `size` rows and the same in one piece.

    Some pages are missing: in one piece these rows are 0. What nobody fills is NaN. One piece has
    as many rows as the pages: sums over other numbers of keys may be rounded in another order.
    """
    new, whole, undefined = attention_arrays(shape, seed)
    paged = in_pages(((undefined.k, undefined.v),), size, seed)
    missing = np.random.default_rng(seed).random(paged.pages.shape) < 0.2
    table = jnp.where(missing, -1, paged.pages)
    lost = np.repeat(missing, size, axis=1)[:, None, :, None]
    rest = ((0, 0), (0, 0), (0, lost.shape[2] - shape.capacity), (0, 0))
    filled = (jnp.where(lost, 0, jnp.pad(rows, rest)) for rows in (whole.k, whole.v))
    prefix = Prefix(*paged.layers[0], whole.length, whole.first, table)
    return new, prefix, Prefix(*filled, whole.length, whole.first)
