"""One kernel for attention to a cached prefix and to new rows, for TPUs.

Written in Pallas, which compiles it with Mosaic. As in `triton`, scores and softmax stay on the
chip (Dao et al., arXiv 2205.14135), and a block of queries holds the rows of all heads that share a
key head. The cache's rows come in blocks, one after another; of the blocks that no row sees none is
fetched. Of a cache in pages a block is a few pages, found through the table, if they are made of
whole tiles; otherwise what the table names is copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import Prefix, Scoring, Segment
from dart_jax.models.kernels import pallas as pl
from dart_jax.models.kernels.pallas import dot

_ROWS = 256  # queries of a block, at most
_KEYS = 512  # keys of a block, at most, unless a page has more
_PAGES = 16  # of a block, at most
_TILE = 16  # rows of a tile of bfloat16 numbers; tiles of float32 have 8
_LANES = 128  # columns of a tile
_NOTHING = -1e30  # the score of a key that is not seen; finite, so that differences are not NaN


def fits(q: jax.Array, prefix: Prefix) -> bool:
    """Returns True if the kernel is made for these sizes and dtypes."""
    alike = q.dtype == prefix.k.dtype == prefix.v.dtype
    return alike and q.shape[3] in (64, 128, 256)


def attend_mosaic(
    new: Segment, prefix: Prefix, scoring: Scoring, *, interpret: bool = False
) -> jax.Array:
    """Computes `attend.attend` as `triton.attend_triton` does."""
    from jax.experimental.pallas import tpu as pltpu

    if prefix.k.shape[2] % _TILE != 0:
        prefix = prefix.in_one_piece()
    b, heads, t, h = new.q.shape
    kv_heads, length = prefix.k.shape[1], prefix.length
    groups = heads // kv_heads
    if prefix.pages is not None:
        # Nothing is looked up beyond the table.
        length = jnp.minimum(length, prefix.capacity)
    sizes = _Sizes.of(groups * t, new.k.shape[2], prefix)
    row_padding = sizes.padded_rows - groups * t
    key_padding = sizes.new_keys - new.k.shape[2]

    def of_rows(x: jax.Array) -> jax.Array:
        """[B, T, C] -> [B, R, C]: the rows of a group's heads, one head after another, padded."""
        tiled = jnp.tile(x, (1, groups, 1)).astype(jnp.int32)
        return jnp.pad(tiled, ((0, 0), (0, row_padding), (0, 0)))

    q = new.q.reshape(b, kv_heads, groups * t, h)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, row_padding), (0, 0)))
    mask = jnp.broadcast_to(new.mask, (b, t, new.k.shape[2]))
    mask = of_rows(jnp.pad(mask, ((0, 0), (0, 0), (0, key_padding))))
    new_k, new_v = (jnp.pad(x, ((0, 0), (0, 0), (0, key_padding), (0, 0))) for x in (new.k, new.v))
    first = jnp.zeros((b, t), jnp.int32) if prefix.first is None else prefix.first
    # The blocks of keys that some row sees, and the one that stands for all others.
    count = sizes.pages * sizes.keys
    end = pl.cdiv(length, count)
    begin = jnp.minimum(jnp.min(first, axis=1) // count, jnp.maximum(end - 1, 0))
    cached = [_cached(sizes, h, part) for part in range(sizes.pages)]
    new_rows = pl.BlockSpec(
        (None, None, sizes.new_keys, h), lambda b, head, row, key, *_: (b, head, 0, 0)
    )
    queries = pl.BlockSpec(
        (None, None, sizes.rows, h), lambda b, head, row, key, *_: (b, head, row, 0)
    )
    one, keys = (
        pl.BlockSpec((None, sizes.rows, columns), lambda b, head, row, key, *_: (b, row, 0))
        for columns in (1, sizes.new_keys)
    )
    sums = [pltpu.VMEM((sizes.rows, columns), jnp.float32) for columns in (h, _LANES, _LANES)]
    out = pl.pallas_call(
        _Kernel(sizes, scoring).run,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(b, kv_heads, sizes.padded_rows // sizes.rows, sizes.blocks + 1),
            in_specs=[one, queries, cached, cached, new_rows, new_rows, keys],
            out_specs=queries,
            scratch_shapes=sums,
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
        length,
        prefix.pages,
        of_rows(first[:, :, None]),
        q,
        [prefix.k] * sizes.pages,
        [prefix.v] * sizes.pages,
        new_k,
        new_v,
        mask,
    )
    out = out[:, :, : groups * t].reshape(b, heads, t, h)
    return out.swapaxes(1, 2).reshape(b, t, heads * h)


class _Sizes(NamedTuple):
    """Sizes of blocks."""

    rows: int  # queries of a block
    padded_rows: int  # queries of a key head, padded to whole blocks
    new_keys: int  # keys of the new rows, padded to whole tiles
    keys: int  # cached keys of a block, or of one of its pages
    pages: int  # of a block; 1 for a cache in one piece
    blocks: int  # of cached keys

    @classmethod
    def of(cls, rows: int, new_keys: int, prefix: Prefix) -> _Sizes:
        """Divides the rows and keys of each key head."""
        block = min(pl.cdiv(rows, _TILE) * _TILE, _ROWS)
        keys, pages = min(_KEYS, prefix.capacity), 1
        if prefix.pages is not None:
            keys = prefix.k.shape[2]
            pages = max(1, min(_KEYS // keys, _PAGES, prefix.pages.shape[1]))
        return cls(
            block,
            pl.cdiv(rows, block) * block,
            pl.cdiv(new_keys, _TILE) * _TILE,
            keys,
            pages,
            pl.cdiv(prefix.capacity, pages * keys),
        )


def _cached(sizes: _Sizes, head_dim: int, part: int) -> Any:
    """Returns the spec of a block of cached keys or values, or of one of its pages."""

    def place(
        b: Any, head: Any, row: Any, key: Any, begin: Any, end: Any, _: Any, table: Any
    ) -> Any:
        del row
        key = jnp.clip(key, begin[b], jnp.maximum(end[b] - 1, begin[b]))
        if table is None:
            return b, head, key, 0
        column = jnp.minimum(key * sizes.pages + part, table.shape[1] - 1)
        return jnp.maximum(table[b, column], 0), head, 0, 0

    return pl.BlockSpec((None, None, sizes.keys, head_dim), place)


class _Kernel(NamedTuple):
    """The kernel: grid axes are the sequence, the key head, the block of queries, and the block of
    keys; the last of these are the new rows."""

    sizes: _Sizes
    scoring: Scoring

    def run(
        self,
        begin: Any,
        end: Any,
        length: Any,
        table: Any,
        first: Any,
        q: Any,
        k: Sequence[Any],
        v: Sequence[Any],
        new_k: Any,
        new_v: Any,
        mask: Any,
        out: Any,
        *sums: Any,
    ) -> None:
        """Adds one block of keys; see the specs in `attend_mosaic`."""
        sequence, block = pl.program_id(0), pl.program_id(3)
        used = length[sequence]

        @pl.when(block == 0)
        def _():
            for ref, start in zip(sums, (0, _NOTHING, 0), strict=True):
                ref[...] = jnp.full_like(ref, start)

        @pl.when((block >= begin[sequence]) & (block < end[sequence]))
        def _():
            count = self.sizes.pages * self.sizes.keys
            column = jax.lax.broadcasted_iota(jnp.int32, (1, count), 1) + block * count
            keys, values = self._pages(k, v, table, sequence, block, used)
            seen = (column < used) & (column >= first[...])
            self._add(q, keys, values, seen, *sums)

        @pl.when(block == self.sizes.blocks)
        def _():
            self._add(q, new_k[...], new_v[...], mask[...] != 0, *sums)
            weighted, _, total = sums
            mean = weighted[...] / jnp.where(total[:, :1] == 0, 1, total[:, :1])
            out[...] = mean.astype(out.dtype)

    def _pages(
        self, k: Any, v: Any, table: Any, sequence: Any, block: Any, used: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Joins a block's pages: keys and values [pages * keys, h], 0 where nothing is."""
        pages, size = self.sizes.pages, self.sizes.keys
        keys, values = [], []
        for part in range(pages):
            start = block * (pages * size) + part * size
            row = jax.lax.broadcasted_iota(jnp.int32, (size, 1), 0) + start
            # What is not filled may be NaN.
            filled, key = row < used, k[part][...]
            if table is not None:
                at = jnp.minimum(block * pages + part, table.shape[1] - 1)
                there = jnp.broadcast_to(table[sequence, at] >= 0, row.shape)
                filled, key = filled & there, jnp.where(there, key, jnp.zeros_like(key))
            keys.append(key)
            values.append(jnp.where(filled, v[part][...], jnp.zeros_like(key)))
        return jnp.concatenate(keys), jnp.concatenate(values)

    def _add(
        self, q: Any, keys: Any, values: Any, seen: jax.Array, sums: Any, top: Any, total: Any
    ) -> None:
        """Adds keys to the weighted sums [rows, h], the largest scores and the sums of weights."""
        score = self.scoring.of(dot(q[...], keys, axis=1), q.shape[1])
        score = jnp.where(seen, score, _NOTHING)
        old = top[:, :1]
        largest = jnp.maximum(old, jnp.max(score, axis=1, keepdims=True))
        weights = jnp.where(seen, jnp.exp(score - largest), 0.0)
        shrink = jnp.exp(old - largest)
        sums[...] = sums[...] * shrink + dot(weights.astype(values.dtype), values)
        more = jnp.sum(weights, axis=1, keepdims=True)
        total[...] = jnp.broadcast_to(total[:, :1] * shrink + more, total.shape)
        top[...] = jnp.broadcast_to(largest, top.shape)
