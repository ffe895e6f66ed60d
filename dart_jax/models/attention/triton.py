"""One kernel for attention to a cached prefix and to new rows, for NVIDIA GPUs.

Written in Pallas for its Triton backend. It keeps scores and softmax on the chip (Dao et al., arXiv
2205.14135), and reads no more of the cache than is filled. A block of queries holds the rows of all
heads that share a key head. With few sequences the keys are split among several blocks, which makes
use of the whole GPU (Dao et al., Flash-Decoding, 2023); another kernel joins their parts. For a
cache in pages it looks up the page of an iteration's keys, or of each key where they may be in
several.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import Prefix, Scoring, Segment, fits_kernels
from dart_jax.models.kernels import pallas as pl
from dart_jax.models.kernels.pallas import dot, every, load, multiprocessors, store

# Queries of a block, and keys of an iteration: the tensor cores need 16, and the shared memory of a
# block holds a tile of queries, and two of keys and two of values.
_SIZES = (16, 32, 64)
_TILE_BYTES = 2**14
_BLOCKS = 2  # that fill a multiprocessor
_JOINED = 2**13  # numbers that a block which joins splits reads: 64 for each of its threads
_NOTHING = -1e30  # the score of a key that is not seen; finite, so that differences are not NaN

Parts = tuple[jax.Array, jax.Array, jax.Array]
Place = tuple[Any, ...]  # of rows: page or sequence, key head, row, element


def fits(q: jax.Array, prefix: Prefix) -> bool:
    """Returns True if the kernel is made for these sizes and dtypes; it counts in 32 bits."""
    alike = q.dtype == prefix.k.dtype == prefix.v.dtype
    return alike and fits_kernels(q.shape[3]) and prefix.k.size < 2**31


def attend_triton(
    new: Segment, prefix: Prefix, scoring: Scoring, *, interpret: bool = False
) -> jax.Array:
    """Computes `attend.attend` for one segment, of T' keys, and a prefix.

    Scores, softmax and sums are float32; weights are rounded to the values' dtype before they are
    multiplied, as in `attend_dense`. With `interpret` the kernel runs in Pallas' interpreter, on
    any platform.
    """
    from jax.experimental.pallas import triton

    b, heads, t, h = new.q.shape
    kv_heads = prefix.k.shape[1]
    groups = heads // kv_heads
    size = h * new.q.dtype.itemsize
    grid = _Grid.of(b * kv_heads, groups * t, prefix.capacity, size)

    def rows(x: jax.Array) -> jax.Array:
        """[B, T, ..] -> [B, R, ..]: the rows of a group's heads, one head after another."""
        return jnp.tile(x, (1, groups, *(1,) * (x.ndim - 2)))

    q = new.q.reshape(b, kv_heads, groups * t, h)
    mask = rows(jnp.broadcast_to(new.mask, (b, t, new.k.shape[2]))).astype(jnp.int8)
    first = None if prefix.first is None else rows(prefix.first)
    args = prefix._replace(first=first), new._replace(q=q, mask=mask)
    result = jax.ShapeDtypeStruct((b, t, heads, h), q.dtype)
    results = [result]
    if grid.splits > 1:
        shape = (grid.splits, *q.shape)
        results = [jax.ShapeDtypeStruct(s, jnp.float32) for s in (shape, shape[:-1], shape[:-1])]

    def kernel(prefix: Any, new: Any, *out_refs: Any) -> None:
        _Block(grid, scoring, t, prefix, new).run(*out_refs)

    parts = pl.pallas_call(
        kernel,
        grid=(grid.row_blocks, b * kv_heads, grid.splits),
        out_shape=results,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="attention",
    )(*args)
    out = parts[0] if grid.splits == 1 else _join(parts, result, interpret)
    return out.reshape(b, t, heads * h)


def _join(parts: Parts, result: jax.ShapeDtypeStruct, interpret: bool) -> jax.Array:
    """Joins the splits' weighted sums [splits, B, K, R, h], largest scores and sums of weights.

    A block reads all splits of its rows at once: one after another, each would wait for memory.
    """
    from jax.experimental.pallas import triton

    b, t, heads, h = result.shape
    out, top, total = parts
    splits = len(out)
    padding = pl.next_power_of_2(splits)
    size = max(1, min(16, _JOINED // (padding * h)))

    def kernel(out_ref: Any, top_ref: Any, total_ref: Any, result_ref: Any) -> None:
        sequence, head = pl.program_id(1), pl.program_id(2)
        rows = pl.ds(pl.program_id(0) * size, size)
        inside = pl.program_id(0) * size + jnp.arange(size, dtype=jnp.int32) < t
        there = (jnp.arange(padding, dtype=jnp.int32) < splits)[:, None] & inside[None]
        at = (pl.ds(0, padding), sequence, head, rows)
        top = load(top_ref.at[at], there, _NOTHING)
        weight = jnp.where(there, jnp.exp(top - jnp.max(top, axis=0)[None]), 0.0)
        total = jnp.sum(weight * load(total_ref.at[at], there), axis=0)
        sums = load(out_ref.at[(*at, slice(None))], there[:, :, None])
        sum_ = jnp.sum(sums * weight[:, :, None], axis=0)
        mean = sum_ / jnp.where(inside, total, 1)[:, None]
        store(result_ref.at[sequence, rows, head, :], mean, inside[:, None])

    return pl.pallas_call(
        kernel,
        grid=(-(-t // size), b, heads),
        out_shape=result,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="join_splits",
    )(
        out.reshape(splits, b, heads, t, h),
        top.reshape(splits, b, heads, t),
        total.reshape(splits, b, heads, t),
    )


class _Grid(NamedTuple):
    """Division of the work among blocks."""

    rows: int  # queries of a block
    keys: int  # keys of an iteration
    row_blocks: int  # blocks of queries per key head
    splits: int  # blocks that share the keys of the same queries

    @classmethod
    def of(cls, heads: int, rows: int, capacity: int, size: int) -> _Grid:
        """Divides `rows` queries of `size` bytes for each of `heads` key heads, over all sequences.

        Splits fill the GPU, but a split has at least two iterations, and what the splits write
        for their sum is no more than the keys and values that they read.
        """
        keys = max(n for n in _SIZES if n * size <= _TILE_BYTES or n == _SIZES[0])
        block = next((n for n in _SIZES if rows <= n), _SIZES[-1])
        block = min(block, keys)
        row_blocks = -(-rows // block)
        blocks = _BLOCKS * multiprocessors()
        most = blocks // (heads * row_blocks), capacity // (2 * keys), capacity // (2 * rows)
        return cls(block, keys, row_blocks, max(1, min(most)))


class _Block:
    """One block: some queries of a key head, and its share of their keys.

    Args:
      grid: how the work is divided; the axes are the block of queries, the sequence and its key
        head, and the split.
      scoring: how scores are computed.
      new_rows: T.
      prefix: refs of cached rows; `first` is int32 [B, R].
      new: refs of new rows: queries [B, K, R, h], of R = G * T rows per key head, and the mask int8
        [B, R, T'].
    """

    def __init__(self, grid: _Grid, scoring: Scoring, new_rows: int, prefix: Any, new: Any):
        self.grid, self.scoring, self.new_rows = grid, scoring, new_rows
        self.prefix, self.new = prefix, new
        self.keys = grid.keys
        self.kv_heads = new.q.shape[1]
        self.sequence = pl.program_id(1) // self.kv_heads
        self.head = pl.program_id(1) % self.kv_heads
        self.start = pl.program_id(0) * grid.rows
        self.rows = pl.ds(self.start, grid.rows)
        self.inside = self.start + jnp.arange(grid.rows, dtype=jnp.int32) < new.q.shape[2]
        self.length = prefix.length[self.sequence]
        if prefix.pages is not None:
            # Nothing is looked up beyond the table.
            self.length = jnp.minimum(self.length, prefix.pages.shape[1] * prefix.k.shape[2])
        self.q = load(new.q.at[self.sequence, self.head, self.rows, :], self.inside[:, None])
        self.first = None
        if prefix.first is not None:
            last = jnp.iinfo(jnp.int32).max
            self.first = load(prefix.first.at[self.sequence, self.rows], self.inside, last)

    def run(self, out_ref: Any, *parts: Any) -> None:
        """Computes the block's results, or its part of them."""
        split = pl.program_id(2)
        low, blocks = self.prefix_blocks()
        share = pl.cdiv(blocks - low, self.grid.splits)
        begin = low + split * share
        carry: Parts = (
            jnp.zeros((self.grid.rows, self.new.q.shape[3]), jnp.float32),
            jnp.full((self.grid.rows,), _NOTHING, jnp.float32),
            jnp.zeros((self.grid.rows,), jnp.float32),
        )
        end = jnp.minimum(begin + share, blocks)
        carry = jax.lax.fori_loop(begin, end, self.add_prefix, carry)
        # The last split also takes the new rows.
        is_last = (split == self.grid.splits - 1).astype(jnp.int32)
        new_blocks = is_last * pl.cdiv(self.new.k.shape[2], self.grid.keys)
        out, top, total = jax.lax.fori_loop(jnp.int32(0), new_blocks, self.add_new, carry)
        if not parts:
            # Rows beyond the last one have seen nothing.
            self.store(out_ref, out / jnp.where(total == 0, 1, total)[:, None])
            return
        for ref, value in zip((out_ref, *parts), (out, top, total), strict=True):
            self.store_part(ref, split, value)

    def prefix_blocks(self) -> tuple[jax.Array | int, jax.Array]:
        """Returns the range of blocks of keys that some row sees."""
        blocks = pl.cdiv(self.length, self.keys)
        if self.first is None:
            return 0, blocks
        return jnp.minimum(jnp.min(self.first) // self.keys, blocks), blocks

    def add_prefix(self, index: jax.Array, carry: Parts) -> Parts:
        """Adds a block of the prefix's keys."""
        at = index * self.keys + jnp.arange(self.keys, dtype=jnp.int32)
        valid = at < self.length
        seen = valid[None]
        if self.first is not None:
            seen = seen & (at[None] >= self.first[:, None])
        place, there = self._rows(index), valid
        if self.prefix.pages is not None:
            place, there = self._rows_in_pages(index, at, valid)
        return self._add(place, there, seen, self.prefix.k, self.prefix.v, carry)

    def add_new(self, index: jax.Array, carry: Parts) -> Parts:
        """Adds a block of the new rows' keys."""
        at = index * self.keys + jnp.arange(self.keys, dtype=jnp.int32)
        valid = at < self.new.k.shape[2]
        mask = self.new.mask.at[self.sequence, self.rows, pl.ds(index * self.keys, self.keys)]
        seen = load(mask, self.inside[:, None] & valid[None]) != 0
        return self._add(self._rows(index), valid, seen, self.new.k, self.new.v, carry)

    def _rows(self, index: jax.Array) -> Place:
        """Gives the place of a block of keys in one piece."""
        return self.sequence, self.head, pl.ds(index * self.keys, self.keys), slice(None)

    def _rows_in_pages(
        self, index: jax.Array, at: jax.Array, valid: jax.Array
    ) -> tuple[Place, jax.Array]:
        """Gives the place of a block of keys in pages, and a mask of those in pages that exist."""
        pages, (_, _, size, h) = self.prefix.pages, self.prefix.k.shape
        if size % self.keys == 0:  # one page has them all
            start = index * self.keys
            page = pages[self.sequence, start // size]
            place = jnp.maximum(page, 0), self.head, pl.ds(start % size, self.keys), slice(None)
            return place, valid & (page >= 0)
        page = load(pages.at[jnp.full_like(at, self.sequence), at // size], valid, -1)
        element = jnp.arange(h, dtype=jnp.int32)[None]
        place = jnp.maximum(page, 0)[:, None], self.head, (at % size)[:, None], element
        return every((self.keys, h), *place), page >= 0

    def _add(
        self, at: Place, there: jax.Array, seen: jax.Array, k_ref: Any, v_ref: Any, carry: Parts
    ) -> Parts:
        """Adds keys to the weighted sum [rows, h], the largest scores and the sums of weights;
        those that are not there are zeros."""
        out, top, total = carry
        k = load(k_ref.at[at], there[:, None])
        v = load(v_ref.at[at], there[:, None])
        score = self.scoring.of(dot(self.q, k, 1), self.q.shape[1])
        new_top = jnp.maximum(top, jnp.max(jnp.where(seen, score, _NOTHING), axis=1))
        weights = jnp.where(seen, jnp.exp(score - new_top[:, None]), 0.0)
        shrink = jnp.exp(top - new_top)
        out = out * shrink[:, None] + dot(weights.astype(v.dtype), v)
        return out, new_top, total * shrink + jnp.sum(weights, axis=1)

    def store(self, ref: Any, value: jax.Array) -> None:
        """Writes the rows' results [rows, h] into [B, T, H, h]."""
        index = self.start + jnp.arange(self.grid.rows, dtype=jnp.int32)
        groups = ref.shape[2] // self.kv_heads
        row, head = index % self.new_rows, self.head * groups + index // self.new_rows
        element = jnp.arange(value.shape[1], dtype=jnp.int32)[None]
        at = every(value.shape, self.sequence, row[:, None], head[:, None], element)
        store(ref.at[at], value, self.inside[:, None])

    def store_part(self, ref: Any, split: jax.Array, value: jax.Array) -> None:
        """Writes a split's results, [rows] or [rows, h]."""
        rest = (slice(None),) * (value.ndim - 1)
        at = ref.at[(split, self.sequence, self.head, self.rows, *rest)]
        store(at, value, self.inside if value.ndim == 1 else self.inside[:, None])
