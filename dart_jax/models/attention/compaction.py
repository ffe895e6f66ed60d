"""Keeps new rows, as the accepted ones of a verification, in the caches of many layers at once.

XLA writes each layer's keys and values by an operation of its own: 72 for a target of 36 layers.
The kernel for NVIDIA GPUs is written in Pallas for its Triton backend.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dart_jax.models.attention.segments import fits_kernels
from dart_jax.models.cache import AnyCache, KVCache, order_after, parts, with_layers
from dart_jax.models.cache import append as append_plainly
from dart_jax.models.cache import extend as extend_plainly
from dart_jax.models.cpu import append_rows
from dart_jax.models.kernels import pallas as pl
from dart_jax.models.kernels.choices import AttentionKernel
from dart_jax.models.kernels.pallas import load, store

_LAYERS = 32  # of a kernel, whose pointers must fit into 4 KB


def append(
    cache: AnyCache, rows: KVCache, index: jax.Array, length: jax.Array, kernel: AttentionKernel
) -> AnyCache:
    """Computes `cache.append`, whose arguments these are, by the kernel for its sizes.

    Where `kernel`, which computes attention, is the C++ core, it also writes all rows; where it is
    Triton's, another one writes the rows of many layers at once, if it is made for their size.
    """
    if kernel == "native":
        return append_rows(cache, rows, index, length)
    layers, pages = parts(cache)
    keys, _ = layers[0]
    if kernel not in ("triton", "interpret") or not fits_kernels(keys.shape[3]):
        return append_plainly(cache, rows, index, length)
    if keys.size >= 2**31:  # the kernel counts in 32 bits
        return append_plainly(cache, rows, index, length)
    groups = [slice(at, at + _LAYERS) for at in range(0, len(layers), _LAYERS)]
    interpret = kernel == "interpret"
    of_groups = (
        _append_triton(layers[g], pages, rows[g], index, length, interpret) for g in groups
    )
    return with_layers(cache, tuple(layer for group in of_groups for layer in group))


def extend(cache: AnyCache, rows: KVCache, length: jax.Array, kernel: AttentionKernel) -> AnyCache:
    """Computes `cache.extend`: where the C++ core attends, by that. XLA's compiler for CPUs would
    convert caches in bfloat16 to float32 and back, to write a few rows."""
    if kernel != "native":
        return extend_plainly(cache, rows, length)
    batch, _, count, _ = rows[0][0].shape
    index = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (batch, count))
    return append_rows(cache, rows, index, length)


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

        def places(outer: jax.Array, row: jax.Array) -> tuple[jax.Array, ...]:
            """Indices for every number: Pallas has no mixture of arrays and slices."""
            element = jnp.arange(h, dtype=jnp.int32)[None]
            every = outer, jnp.full((1, 1), head, jnp.int32), row[:, None], element
            return tuple(jnp.broadcast_to(x, (size, h)) for x in every)

        source = places(jnp.full((1, 1), sequence, jnp.int32), chosen)
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
            there = places(jnp.where(inside_pool, page, count)[:, None], row % page_rows)
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
