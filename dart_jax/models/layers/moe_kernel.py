"""Experts' products on NVIDIA GPUs: two kernels that read only the experts that rows are routed to.

Rows are copied once per expert, sorted by expert, and divided into blocks that have one expert
each (as in MegaBlocks, Gale et al., arXiv 2211.15841). The first kernel computes gate, up and
activation, the second the projection back. Written in Pallas for its Triton backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.models.kernels import pallas as pl
from dart_jax.models.kernels.int8 import Int8, Kernel
from dart_jax.models.kernels.matmul import activations, factor, narrowed, scaled
from dart_jax.models.kernels.pallas import dot, every, load, store

_SIZES = (16, 32, 64)  # rows of a block: the tensor cores need 16
_INNER = 64  # entries of the sum in an iteration
_OUTER = 64  # results of a block for each of its rows; with few blocks less, to fill the GPU
_FEW = 64  # blocks of rows


class Blocks(NamedTuple):
    """Rows of each block; n blocks of m rows.

    Attributes:
      rows: int32 [n * m], the rows' numbers; T where a block has no more rows.
      experts: int32 [n], each block's expert.
      used: int32 [1], how many blocks have rows; these are the first.
      places: int32 [T, k], where in `rows` the copies of a row are.
    """

    rows: jax.Array
    experts: jax.Array
    used: jax.Array
    places: jax.Array


def fits(kernels: Kernel) -> bool:
    """Returns True if the kernels fit experts of this size [E, D, F]; they count in 32 bits."""
    return kernels.size < 2**31


def routed(
    rows: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    *kernels: Kernel,
    interpret: bool = False,
) -> jax.Array:
    """Computes `plain.loop_over_experts` with float32 sums.

    With `interpret` the kernels run in Pallas' interpreter, on any platform.
    """
    gate, up, down = kernels
    count = gate.shape[0]
    size = block_size(experts.size, count)
    blocks = divide(experts, count, size)

    product = partial(_product, blocks=blocks, size=size, interpret=interpret)
    hidden = product(narrowed(rows, gate.dtype), [gate, up], blocks.rows)
    hidden, by = factor(hidden, down.dtype)
    out = product(hidden, [down], jnp.arange(len(blocks.rows), dtype=jnp.int32))
    out = scaled(out, by)
    copies = jnp.take(out, blocks.places, axis=0, mode="clip")
    # What blocks without rows have is undefined.
    local = (experts < count)[:, :, None]
    return jnp.sum(jnp.where(local, copies * weights[:, :, None], 0), axis=1)


def block_size(copies: int, experts: int) -> int:
    """Rows of a block, for rows that are spread evenly among the experts."""
    return next((size for size in _SIZES if copies <= size * experts), _SIZES[-1])


def divide(experts: jax.Array, count: int, size: int) -> Blocks:
    """Divides the copies of rows into blocks.

    Args:
      experts: int32 [T, k], each row's experts; E and more for none.
      count: E, number of experts.
      size: rows of a block.
    """
    chosen = experts.reshape(-1)
    copies = len(chosen)
    most = min(copies, count + copies // size)  # every expert may have a block that is not full
    numbers = jnp.arange(copies, dtype=jnp.int32)
    sorted_experts, order = jax.lax.sort_key_val(chosen, numbers)

    # [E]: an expert's copies, and where its copies and its blocks begin and end.
    every = jnp.arange(count, dtype=jnp.int32)
    copies_end = jnp.sum(chosen[None] <= every[:, None], axis=1, dtype=jnp.int32)
    of_expert = jnp.sum(chosen[None] == every[:, None], axis=1, dtype=jnp.int32)
    blocks_of = (of_expert + size - 1) // size
    blocks_end = jnp.sum(
        jnp.where(every[None] <= every[:, None], blocks_of[None], 0), axis=1, dtype=jnp.int32
    )
    first_copy, first_block = copies_end - of_expert, blocks_end - blocks_of

    place = first_block[sorted_experts] * size + numbers - first_copy[sorted_experts]
    place = jnp.where(sorted_experts < count, place, most * size + numbers)  # is dropped
    rows = jnp.full(most * size, len(experts), jnp.int32)
    rows = rows.at[place].set(order // experts.shape[1], unique_indices=True)
    places = jnp.zeros(copies, jnp.int32).at[order].set(place, unique_indices=True)
    block = jnp.arange(most, dtype=jnp.int32)
    of_block = jnp.sum(blocks_end[None] <= block[:, None], axis=1, dtype=jnp.int32)
    return Blocks(
        rows, jnp.minimum(of_block, count - 1), blocks_end[-1:], places.reshape(experts.shape)
    )


def _product(
    x: jax.Array,
    kernels: list[Kernel],
    which: jax.Array,
    blocks: Blocks,
    size: int,
    interpret: bool,
) -> jax.Array:
    """Multiplies every block's rows with its expert's kernel; of two kernels, returns the product
    of the second with the SiLU of the first.

    Args:
      x: [R, I].
      kernels: one or two, [E, I, O]; in 8 bits, their scales multiply the sums.
      which: int32 [n * m], the rows of x that blocks have; R and more for none.
      blocks: of `size` rows, m.
      size: m.
      interpret: see `routed`.

    Returns:
      [n * m, O] in the dtype of activations; what blocks without rows have is undefined.
    """
    from jax.experimental.pallas import triton

    count, outer = len(blocks.experts), kernels[0].shape[2]
    result = jax.ShapeDtypeStruct((count * size, outer), activations(x.dtype))
    arrays = [kernel.values if isinstance(kernel, Int8) else kernel for kernel in kernels]
    scales = [kernel.scale for kernel in kernels if isinstance(kernel, Int8)]
    width = _OUTER if count > _FEW else _OUTER // 2

    def run(x_ref: Any, which_ref: Any, blocks: Any, kernels: Any, scales: Any, out: Any) -> None:
        experts_ref, used_ref = blocks
        block, first = pl.program_id(0), pl.program_id(1) * width

        @pl.when(block < used_ref[0])
        def _():
            expert = experts_ref[block]
            rows = which_ref[pl.ds(block * size, size)]
            columns = first + jnp.arange(width, dtype=jnp.int32)
            sums = _sums(x_ref, rows, kernels, expert, first, columns)
            if scales:
                of_expert = (ref.at[expert, pl.ds(first, width)] for ref in scales)
                factors = [load(scale, columns < outer) for scale in of_expert]
                sums = [total * scale[None] for total, scale in zip(sums, factors, strict=True)]
            *gate, value = sums
            if gate:
                value = jax.nn.silu(gate[0]) * value
            tile = (pl.ds(block * size, size), pl.ds(first, width))
            store(out.at[tile], value, (columns < outer)[None])

    return pl.pallas_call(
        run,
        grid=(count, pl.cdiv(outer, width)),
        out_shape=result,
        # What is loaded ahead fits into the 99 KB of shared memory that smaller GPUs have.
        compiler_params=triton.CompilerParams(
            num_warps=4, num_stages=3 if x.dtype.itemsize == 2 else 2
        ),
        interpret=interpret,
        name="experts_gate_up" if len(kernels) == 2 else "experts_down",
    )(x, which, (blocks.experts, blocks.used), arrays, scales)


def _sums(
    x_ref: Any,
    rows: jax.Array,
    kernel_refs: Sequence[Any],
    expert: jax.Array,
    first: jax.Array,
    columns: jax.Array,
) -> Sequence[jax.Array]:
    """Multiplies rows of x, int32 [m], with columns of an expert's kernels, int32 [width] from
    `first` on; returns float32 [m, width] for each kernel."""
    size, width = len(rows), len(columns)
    (count, inner), outer = x_ref.shape, kernel_refs[0].shape[2]

    def add(index: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        begin = index * _INNER
        at = begin + jnp.arange(_INNER, dtype=jnp.int32)
        numbers, columns_in = every((size, _INNER), rows[:, None], at[None])
        x = load(x_ref.at[numbers, columns_in], (numbers < count) & (at < inner)[None])
        tile = (expert, pl.ds(begin, _INNER), pl.ds(first, width))
        inside = (at < inner)[:, None] & (columns < outer)[None]
        return tuple(
            total + dot(x, load(ref.at[tile], inside).astype(x.dtype))
            for total, ref in zip(sums, kernel_refs, strict=True)
        )

    zeros = tuple(jnp.zeros((size, width), jnp.float32) for _ in kernel_refs)
    steps = jnp.int32(pl.cdiv(inner, _INNER))
    return jax.lax.fori_loop(jnp.int32(0), steps, add, zeros)
