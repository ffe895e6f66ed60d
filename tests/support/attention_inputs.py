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


def paged_arrays(shape, size, seed):
    """As `attention_arrays`, with the prefix in pages of `size` rows and the same in one piece.

    Pages are anywhere in the pool and shared between sequences. Some are missing where no row is
    filled, or where it is: in one piece these rows are 0. What nobody fills is NaN.
    """
    rng = np.random.default_rng(seed)
    new, whole, _ = attention_arrays(shape, seed)
    each = -(-shape.capacity // size)
    count = shape.batch * each + 2
    pages = rng.integers(0, count, (shape.batch, each))
    pages[rng.random(pages.shape) < 0.1] = -1
    length = np.asarray(whole.length)
    at = np.arange(each * size)
    filled = at < length[:, None]
    ends = -(-length[:, None] // size)
    pages = np.where((np.arange(each) >= ends) & (rng.random(pages.shape) < 0.7), -1, pages)
    used = np.zeros((count + 1, size), bool)
    np.logical_or.at(used, (pages[:, at // size], at % size), filled)
    k, v = (rng.standard_normal((count, shape.kv_heads, size, shape.head_dim)) for _ in range(2))

    def one_piece(pool):
        rows = pool[pages[:, at // size], :, at % size].swapaxes(1, 2)
        seen = filled & (pages[:, at // size] >= 0)
        return jnp.asarray(np.where(seen[:, None, :, None], rows, 0), shape.dtype)

    def undefined(pool):
        return jnp.asarray(np.where(used[:-1, None, :, None], pool, np.nan), shape.dtype)

    table = jnp.asarray(pages, jnp.int32)
    paged = Prefix(undefined(k), undefined(v), whole.length, whole.first, table)
    return new, paged, Prefix(one_piece(k), one_piece(v), whole.length, whole.first)
