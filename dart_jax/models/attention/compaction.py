"""Keeps new rows, as the accepted ones of a verification, in the caches of many layers at once.

XLA writes each layer's keys and values by an operation of its own: 72 for a target of 36 layers.
The kernel for NVIDIA GPUs is written in Pallas for its Triton backend.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import fits_kernels
from dart_jax.models.cache import AnyCache, KVCache, order_after, parts, with_layers
from dart_jax.models.cpu import in_place, or_nothing, used_rows
from dart_jax.models.kernels import pallas as pl
from dart_jax.models.kernels.choices import AttentionKernel
from dart_jax.models.kernels.pallas import every, load, store

_LAYERS = 32  # of a kernel, whose pointers must fit into 4 KB


def append(
    cache: AnyCache,
    rows: KVCache,
    index: jax.Array,
    length: jax.Array,
    kernel: AttentionKernel = "dense",
) -> AnyCache:
    """Writes selected new rows after each sequence: the compaction after a verification.

    Args:
      cache: donated by callers; see `extend`.
      rows: keys and values of the T rows just computed, [B, K, T, h] per layer.
      index: int32 [B, P], which of the T rows to keep, in order. A sequence that keeps fewer than
        P repeats any valid row: the surplus is written beyond its new length.
      length: int32 [B], rows already in the cache.
      kernel: what computes attention. The C++ core also writes all rows but those that `only_rows`
        leaves out; with Triton's kernel, another one writes the rows of many layers at once.
    """
    chex.assert_shape(length, index.shape[:1])
    layers, pages = parts(cache)
    if kernel == "native":
        numbers = index.astype(jnp.int32), length.astype(jnp.int32), or_nothing(pages, jnp.int32)
        new = jax.tree.leaves(rows)
        written = in_place("dart_append", layers, *numbers, used_rows(), after=new)
        return with_layers(cache, written)
    keys, _ = layers[0]
    fits = fits_kernels(keys.shape[3]) and keys.size < 2**31  # the kernel counts in 32 bits
    if kernel not in ("triton", "interpret") or not fits:
        keep = lambda new: jnp.take_along_axis(new, index[:, None, :, None], axis=2)  # noqa: E731
        return extend(cache, jax.tree.map(keep, rows), length)
    written: KVCache = ()
    for at in range(0, len(layers), _LAYERS):
        group = slice(at, at + _LAYERS)
        interpret = kernel == "interpret"
        written += _append_triton(layers[group], pages, rows[group], index, length, interpret)
    return with_layers(cache, written)


def extend(
    cache: AnyCache, rows: KVCache, length: jax.Array, kernel: AttentionKernel = "dense"
) -> AnyCache:
    """Writes all new rows after each sequence.

    Args:
      cache: donated by callers. In one piece, its capacity must be at least `length + T`, since
        `dynamic_update_slice` would otherwise shift the write.
      rows: keys and values of T new rows, [B, K, T, h] per layer.
      length: int32 [B], rows already in the cache.
      kernel: what computes attention. The C++ core also writes all rows: XLA for CPUs would convert
        caches in bfloat16 to float32 and back.
    """
    if kernel == "native":
        batch, _, count, _ = rows[0][0].shape
        index = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (batch, count))
        return append(cache, rows, index, length, kernel)
    layers, pages = parts(cache)
    if pages is not None:
        return with_layers(cache, _extend_pages(layers, pages, rows, length))
    chex.assert_equal_shape_prefix(jax.tree.leaves((layers, rows)), 2)

    def write(old: jax.Array, new: jax.Array, length: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(old, finite(new), (0, length, 0))

    layers = jax.tree.map(lambda old, new: jax.vmap(write)(old, new, length), layers, rows)
    return with_layers(cache, layers)


def finite(rows: jax.Array) -> jax.Array:
    """Returns rows to be cached, without NaN and infinities: the step that computes them reports
    these, and whoever later has their place in a cache multiplies it with 0 before it is filled."""
    return jnp.where(jnp.isfinite(rows), rows, 0)


def keep_rows(
    cache: AnyCache, rows: KVCache, length: jax.Array, kernel: AttentionKernel
) -> AnyCache:
    """Writes the rows of a prompt after those before them.

    Args:
      cache: donated by callers, and read by all but the last layer to compute `rows`. If the last
        layer reads its cache too, let `length` wait for its result.
      rows: keys and values of T rows, [B, K, T, h] per layer.
      length: int32 [B], rows already in the cache.
      kernel: see `append`.
    """
    last, _ = rows[-1]
    result = jnp.isnan(last.ravel()[:1]).astype(jnp.int32)
    return extend(cache, rows, order_after(result, length), kernel)


def _extend_pages(layers: KVCache, pages: jax.Array, rows: KVCache, length: jax.Array) -> KVCache:
    new, _ = rows[0]
    pool, _ = layers[0]
    count, heads, size, _ = pool.shape
    chex.assert_equal_shape_prefix([length, pages, new], 1)
    at = length[:, None] + jnp.arange(new.shape[2], dtype=jnp.int32)[None]
    page = jnp.take_along_axis(pages, at // size, axis=1, mode="fill", fill_value=-1)
    page = jnp.where(page < 0, count, page)  # beyond the pool, as -1 would be its last page
    page, place = page[:, None], (at % size)[:, None]
    head = jnp.arange(heads, dtype=jnp.int32)[None, :, None]

    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        # One row of one head at a time: to write all heads of a row at once, a TPU's compiler would
        # lay the pool out again, a copy.
        return old.at[page, head, place].set(finite(new), mode="drop", unique_indices=True)

    return jax.tree.map(write, layers, rows)


def _append_triton(
    cache: KVCache,
    pages: jax.Array | None,
    rows: KVCache,
    index: jax.Array,
    length: jax.Array,
    interpret: bool,
) -> KVCache:
    from jax.experimental.pallas import triton

    count, kv_heads, page_rows, h = cache[0][0].shape
    b, kept = index.shape
    size = pl.next_power_of_2(kept)
    numbers = length, index, pages

    def kernel(numbers: Any, new_refs: Any, _: Any, *out_refs: Any) -> None:
        length_ref, index_ref, pages_ref = numbers
        sequence, head = pl.program_id(0), pl.program_id(1)
        at = jnp.arange(size, dtype=jnp.int32)
        inside = at < kept
        # By indices, as JAX refuses a slice that is too long for some of its numbers to be masked.
        chosen = load(index_ref.at[jnp.full((size,), sequence, jnp.int32), at], inside)

        element = jnp.arange(h, dtype=jnp.int32)[None]
        source = every((size, h), sequence, head, chosen[:, None], element)
        there: Any = (sequence, head, pl.ds(length_ref[sequence], size), slice(None))
        inside_pool = inside
        if pages_ref is not None:
            row = length_ref[sequence] + at
            within = inside & (row < pages_ref.shape[1] * page_rows)
            columns = jnp.full((size,), sequence, jnp.int32), row // page_rows
            page = load(pages_ref.at[columns], within, -1)
            inside_pool = page >= 0
            # What is not written is beyond the pool: with the place of a row that is, Pallas'
            # interpreter would write the old one there.
            page, row = jnp.where(inside_pool, page, count), row % page_rows
            there = every((size, h), page[:, None], head, row[:, None], element)
        for layer, pairs in enumerate(zip(new_refs, out_refs, strict=True)):

            @pl.when(pl.program_id(2) == layer)
            def _(pairs: Any = pairs):
                for new, out in zip(*pairs, strict=True):
                    value = load(new.at[source], inside[:, None])
                    store(out.at[there], value, inside_pool[:, None])

    before = len(jax.tree.leaves((numbers, rows)))
    return pl.pallas_call(
        kernel,
        grid=(b, kv_heads, len(cache)),
        out_shape=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), cache),
        input_output_aliases={before + i: i for i in range(2 * len(cache))},
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=1),
        interpret=interpret,
        name="append_rows",
    )(numbers, rows, cache)
