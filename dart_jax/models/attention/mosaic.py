"""One kernel for attention to a cached prefix and to new rows, for TPUs.

Written in Pallas, which compiles it with Mosaic. As in `triton`, scores and softmax stay on the
chip (Dao et al., arXiv 2205.14135), and a block of queries holds the rows of all heads that share a
key head. The cache's rows come in blocks, one after another; of the blocks that no row sees none is
fetched. Of a cache in pages a block is a few pages, found through the table, if they are made of
whole tiles; otherwise what the table names is copied first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from dart_jax.models.attention.segments import Prefix, Scoring, Segment, softcap
from dart_jax.models.kernels.pallas import dot

_ROWS = 256  # queries of a block, at most
_KEYS = 512  # keys of a block, at most, unless a page has more
_PAGES = 16  # of a block, at most
_TILE = 16  # rows of a tile of bfloat16 numbers; those of float32 have 8
_LANES = 128  # columns of a tile
_NOTHING = -1e30  # the score of a key that is not seen; finite, so that differences are not NaN


def fits(q: jax.Array, prefix: Prefix) -> bool:
    """Whether the kernel is made for these sizes and dtypes."""
    alike = q.dtype == prefix.k.dtype == prefix.v.dtype
    return alike and q.shape[3] in (64, 128, 256)


def attend_mosaic(
    new: Segment, prefix: Prefix, scoring: Scoring, *, interpret: bool = False
) -> jax.Array:
    """Computes what `attend` says, for one segment and a prefix.

    Scores, softmax and sums are float32; weights are rounded to the values' dtype before they are
    multiplied, as in `attend_dense`.

    Args:
      new: new rows, T' keys.
      prefix: cached rows.
      scoring: how scores are computed.
      interpret: run the kernel in Pallas' interpreter, on any platform.

    Returns:
      [B, T, H * h] in the queries' dtype.
    """
    from jax.experimental.pallas import tpu as pltpu

    if prefix.k.shape[2] % _TILE != 0:
        prefix = prefix.in_one_piece()
    b, heads, t, h = new.q.shape
    kv_heads, capacity = prefix.k.shape[1], prefix.capacity
    groups, scalars = heads // kv_heads, [prefix.length]
    keys, pages = min(_KEYS, capacity), 1
    if prefix.pages is not None:
        # Nothing is looked up beyond the table.
        scalars = [jnp.minimum(prefix.length, capacity), prefix.pages]
        keys = prefix.k.shape[2]
        pages = max(1, min(_KEYS // keys, _PAGES, prefix.pages.shape[1]))
    rows, new_keys = groups * t, pl.cdiv(new.k.shape[2], _TILE) * _TILE
    size = min(pl.cdiv(rows, _TILE) * _TILE, _ROWS)
    padded = pl.cdiv(rows, size) * size
    more_keys = new_keys - new.k.shape[2]

    def of_rows(x: jax.Array, fill: int) -> jax.Array:
        """[B, T, C] -> [B, R, C]: the rows of a group's heads, one head after another, padded."""
        tiled = jnp.tile(x, (1, groups, 1)).astype(jnp.int32)
        return jnp.pad(tiled, ((0, 0), (0, padded - rows), (0, 0)), constant_values=fill)

    q = new.q.reshape(b, kv_heads, rows, h)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, padded - rows), (0, 0)))
    mask = jnp.broadcast_to(new.mask, (b, t, new.k.shape[2]))
    mask = of_rows(jnp.pad(mask, ((0, 0), (0, 0), (0, more_keys))), 0)
    new_k, new_v = (jnp.pad(x, ((0, 0), (0, 0), (0, more_keys), (0, 0))) for x in (new.k, new.v))
    first = jnp.zeros((b, t), jnp.int32) if prefix.first is None else prefix.first
    # The blocks of keys that some row sees, and the one that stands for all others.
    end = pl.cdiv(scalars[0], pages * keys)
    begin = jnp.minimum(jnp.min(first, axis=1) // (pages * keys), jnp.maximum(end - 1, 0))
    blocks = pl.cdiv(capacity, pages * keys)
    kernel = _Kernel(keys, blocks, pages, scoring.factor(h), scoring.cap, len(scalars) > 1)

    def cached(part: int) -> pl.BlockSpec:
        """A block of keys, or one of its pages."""

        def place(b: Any, head: Any, row: Any, key: Any, begin: Any, end: Any, *others: Any) -> Any:
            del row
            key = jnp.clip(key, begin[b], jnp.maximum(end[b] - 1, begin[b]))
            if len(others) == 1:
                return b, head, key, 0
            _, table = others
            column = jnp.minimum(key * pages + part, table.shape[1] - 1)
            return jnp.maximum(table[b, column], 0), head, 0, 0

        return pl.BlockSpec((None, None, keys, h), place)

    def one_head(count: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, count, h), lambda b, head, row, key, *_: (b, head, 0, 0))

    def per_row(columns: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, size, columns), lambda b, head, row, key, *_: (b, row, 0))

    rows_of_head = pl.BlockSpec(
        (None, None, size, h), lambda b, head, row, key, *_: (b, head, row, 0)
    )
    cache = [cached(part) for part in range(pages)]
    out = pl.pallas_call(
        kernel.run,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2 + len(scalars),
            grid=(b, kv_heads, padded // size, blocks + 1),
            in_specs=[
                per_row(1),
                rows_of_head,
                *cache,
                *cache,
                one_head(new_keys),
                one_head(new_keys),
                per_row(new_keys),
            ],
            out_specs=rows_of_head,
            scratch_shapes=[
                pltpu.VMEM((size, h), jnp.float32),
                pltpu.VMEM((size, _LANES), jnp.float32),
                pltpu.VMEM((size, _LANES), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
        name="attention",
    )(
        begin.astype(jnp.int32),
        end.astype(jnp.int32),
        *scalars,
        of_rows(first[:, :, None], 0),
        q,
        *[prefix.k] * pages,
        *[prefix.v] * pages,
        new_k,
        new_v,
        mask,
    )
    out = out[:, :, :rows].reshape(b, heads, t, h)
    return out.swapaxes(1, 2).reshape(b, t, heads * h)


class _Kernel(NamedTuple):
    """The kernel: grid axes are the sequence, the key head, the block of queries, and the block of
    keys; the last of these are the new rows.

    Attributes:
      keys: cached keys of a block, or of one of its pages.
      blocks: of cached keys.
      pages: of a block; 1 for a cache in one piece.
      scale: factor on the products.
      cap: see `Scoring`.
      paged: whether the last of the prefetched numbers is the table of pages.
    """

    keys: int
    blocks: int
    pages: int
    scale: float
    cap: float | None
    paged: bool

    def run(self, begin: Any, end: Any, length: Any, *refs: Any) -> None:
        """Adds one block of keys; refs: see the specs in `attend_mosaic`."""
        table, refs = (refs[0], refs[1:]) if self.paged else (None, refs)
        (first, q), refs = refs[:2], refs[2:]
        k, v, refs = refs[: self.pages], refs[self.pages : 2 * self.pages], refs[2 * self.pages :]
        new_k, new_v, mask, out, sums, top, total = refs
        sequence, block = pl.program_id(0), pl.program_id(3)
        used = length[sequence]

        @pl.when(block == 0)
        def _():
            sums[...] = jnp.zeros_like(sums)
            top[...] = jnp.full_like(top, _NOTHING)
            total[...] = jnp.zeros_like(total)

        def add(keys: jax.Array, values: jax.Array, seen: jax.Array) -> None:
            score = dot(q[...], keys, axis=1) * self.scale
            if self.cap is not None:
                score = softcap(score, self.cap)
            score = jnp.where(seen, score, _NOTHING)
            old = top[:, :1]
            largest = jnp.maximum(old, jnp.max(score, axis=1, keepdims=True))
            weights = jnp.where(seen, jnp.exp(score - largest), 0.0)
            shrink = jnp.exp(old - largest)
            sums[...] = sums[...] * shrink + dot(weights.astype(values.dtype), values)
            more = jnp.sum(weights, axis=1, keepdims=True)
            total[...] = jnp.broadcast_to(total[:, :1] * shrink + more, total.shape)
            top[...] = jnp.broadcast_to(largest, top.shape)

        @pl.when((block >= begin[sequence]) & (block < end[sequence]))
        def _():
            count = self.pages * self.keys
            column = jax.lax.broadcasted_iota(jnp.int32, (1, count), 1) + block * count
            keys, values = [], []
            for part in range(self.pages):
                start = block * count + part * self.keys
                row = jax.lax.broadcasted_iota(jnp.int32, (self.keys, 1), 0) + start
                # What is not filled may be NaN.
                filled, key = row < used, k[part][...]
                if table is not None:
                    at = jnp.minimum(block * self.pages + part, table.shape[1] - 1)
                    there = jnp.broadcast_to(table[sequence, at] >= 0, row.shape)
                    filled, key = filled & there, jnp.where(there, key, jnp.zeros_like(key))
                keys.append(key)
                values.append(jnp.where(filled, v[part][...], jnp.zeros_like(key)))
            seen = (column < used) & (column >= first[...])
            add(jnp.concatenate(keys), jnp.concatenate(values), seen)

        @pl.when(block == self.blocks)
        def _():
            add(new_k[...], new_v[...], mask[...] != 0)
            mean = sums[...] / jnp.where(total[:, :1] == 0, 1, total[:, :1])
            out[...] = mean.astype(out.dtype)
