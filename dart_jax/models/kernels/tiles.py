"""Weights in tiles, for the C++ core on CPUs, and products with them.

XLA's products of a few rows take several times as long as reading the weights. Tiles are stored in
the order in which they are read, and each value is summed in one fixed order: a row's bits do not
depend on other rows or on threads. With weights in 16 bits arithmetic is float32 all the same.
Weights of GGUF's types of 4 to 8 bits stay in their blocks; the inputs are rounded to 8 bits, too,
in groups of 32 that share a scale, and the products within a group are summed as integers. Products
cannot be differentiated, nor mapped by `jax.vmap`.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dart_jax import _core
from dart_jax.machine import available_cores
from dart_jax.memory import HugePages, aligned
from dart_jax.models.cpu import available, or_nothing, used_rows
from dart_jax.models.kernels.inputs import Gated, Inputs, Normed, add, computed, source

TILE = 32  # outputs of a tile
# Activations of gated MLPs, and the core's names of them.
CORE_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
# Types of GGUF's files that are computed as they are stored.
BLOCK_TYPES = frozenset(_core.weight_types) - {"F32", "F16", "BF16"}

# Of floats, by dtype.
_TYPES = {jnp.dtype("float32"): "F32", jnp.dtype("float16"): "F16", jnp.dtype("bfloat16"): "BF16"}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tiles:
    """A matrix [in, out] in tiles, in one or more parts that follow each other along its outputs.

    Attributes:
      parts: tiles of `TILE` outputs each: float32, float16 or bfloat16 [n, in, TILE], or uint8
        [n, bytes] as in native/include/dart/blocks.h.
      types: of the parts, by GGUF's names: F32, F16, BF16 or one of `BLOCK_TYPES`.
      outs: of the parts.
      d_in: inputs.
    """

    parts: tuple[jax.Array, ...]
    types: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    outs: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    d_in: int = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """The matrix's: (in, out)."""
        return self.d_in, sum(self.outs)

    @property
    def ndim(self) -> int:
        """Its number of axes."""
        return 2

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return sum(part.nbytes for part in self.parts)

    @property
    def in_blocks(self) -> bool:
        """Returns True if a part has blocks, so that inputs are rounded to 8 bits."""
        return not BLOCK_TYPES.isdisjoint(self.types)

    def rows(self, outputs: jax.Array) -> jax.Array:
        """Returns weights of outputs, int32 [...], of a matrix in one part: float32 [..., in]."""
        _check_core()
        (tiles,), (out,) = self.parts, self.outs
        shape = jax.ShapeDtypeStruct((*outputs.shape, self.d_in), jnp.float32)
        return jax.ffi.ffi_call("dart_take_tiles", shape)(
            tiles, outputs.astype(jnp.int32), type=type_numbers(self)[0], out=out
        )

    def transposed(self) -> jax.Array:
        """Returns the matrix as floats: float32 [out, in]."""
        return self.rows(jnp.arange(self.shape[1], dtype=jnp.int32))


# Jitted, so that memory holds little but the weights and the tiles.
@partial(jax.jit, static_argnames=("transposed", "dtype"))
def pack(weights: jax.Array, transposed: bool = False, dtype: DTypeLike | None = None) -> Tiles:
    """Stores weights [in, out], of a dtype in `_TYPES`, in tiles of another of them, by default
    their own; if `transposed`, weights [out, in]."""
    weights = (weights.T if transposed else weights).astype(dtype or weights.dtype)
    d_in, d_out = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -d_out % TILE)))
    tiles = padded.reshape(d_in, padded.shape[1] // TILE, TILE).swapaxes(0, 1)
    return Tiles((tiles,), (_TYPES[tiles.dtype],), (d_out,), d_in)


def pack_exactly(weights: jax.Array, transposed: bool = False) -> Tiles:
    """Stores weights in tiles of 16 bits if these hold their values exactly, as they do for most
    published checkpoints; otherwise of their dtype."""
    exact = (dtype for dtype in (jnp.bfloat16, jnp.float16) if _holds(dtype, weights))
    return pack(weights, transposed, next(exact, None))


@partial(jax.jit, static_argnums=0)
def _holds(dtype: DTypeLike, weights: jax.Array) -> jax.Array:
    return jnp.all(weights.astype(dtype).astype(weights.dtype) == weights)


def pack_int8(weights: jax.Array, transposed: bool = False) -> Tiles:
    """Rounds weights to 8 bits, in blocks of GGUF's type Q8_0: in each group of 32 inputs the
    weight of the largest magnitude becomes 127 or -127."""
    rows = np.asarray(weights, np.float32)
    rows = np.ascontiguousarray(rows if transposed else rows.T)
    d_out, d_in = rows.shape
    tiles = _empty_tiles("Q8_0", d_in, d_out)
    _core.pack_q8_0(rows, tiles, available_cores())
    return Tiles((jax.device_put(tiles),), ("Q8_0",), (d_out,), d_in)


def pack_blocks(type: str, rows: np.ndarray) -> tuple[Tiles, int]:
    """Stores blocks of a GGUF file in tiles.

    Args:
      type: one of `BLOCK_TYPES`.
      rows: uint8 [out, bytes], the blocks of each output.

    Returns:
      The matrix [in, out], and how many of its weights are not finite.
    """
    import gguf

    inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    d_out, d_in = len(rows), rows.shape[1] // size * inputs
    tiles = _empty_tiles(type, d_in, d_out)
    not_finite = _core.pack_blocks(type, np.ascontiguousarray(rows), tiles, available_cores())
    return Tiles((jax.device_put(tiles),), (type,), (d_out,), d_in), not_finite


def _empty_tiles(type: str, d_in: int, d_out: int) -> np.ndarray:
    """Room for tiles of blocks."""
    return aligned((-(-d_out // TILE), _core.tile_bytes(type, d_in)), np.uint8)


def join(matrices: list[Tiles]) -> Tiles:
    """Joins matrices of the same inputs along their outputs. Neighbours of one type become one
    part: programs take memory, and time to start, for every argument."""
    parts: list[list[jax.Array]] = []
    types: list[str] = []
    outs: list[int] = []
    for matrix in matrices:
        for part, type, out in zip(matrix.parts, matrix.types, matrix.outs, strict=True):
            if types[-1:] == [type] and outs[-1] % TILE == 0:
                parts[-1].append(part)
                outs[-1] += out
            else:
                parts.append([part])
                types.append(type)
                outs.append(out)
    return Tiles(tuple(map(_joined, parts)), tuple(types), tuple(outs), matrices[0].d_in)


def _joined(parts: list[jax.Array]) -> jax.Array:
    """Tiles that follow each other, in one array."""
    if len(parts) == 1:
        return parts[0]
    count, (_, *tile) = sum(map(len, parts)), parts[0].shape
    whole = aligned((count, *tile), parts[0].dtype)
    return jax.device_put(np.concatenate([np.asarray(part) for part in parts], out=whole))


def settle(tiles: Tiles, memory: HugePages) -> Tiles:
    """Copies a matrix to where it is read faster."""
    parts = (jax.device_put(memory.copy(np.asarray(part))) for part in tiles.parts)
    return dataclasses.replace(tiles, parts=tuple(parts))


def product(
    inputs: Inputs, weights: Tiles, bias: jax.Array | None = None, residual: jax.Array | None = None
) -> jax.Array:
    """Computes x W + bias + residual, with float32 arithmetic.

    Args:
      inputs: x, [..., in], float32 or bfloat16.
      weights: W, [in, out].
      bias: [out], if any.
      residual: [..., out], if any.

    Returns:
      [..., out], of x's dtype.

    Raises:
      RuntimeError: XLA cannot call the C++ core here.
    """
    _check_core()
    x = source(inputs)
    if x.dtype != jnp.float32:
        # In these dtypes each operation rounds.
        y = product(computed(inputs).astype(jnp.float32), weights).astype(x.dtype)
        return add(y, bias, residual)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    _, d_out = weights.shape
    kind, scale, eps, offset = "rows", None, 0.0, 0.0
    if isinstance(inputs, Normed):
        kind, scale, eps, offset = "norm", inputs.scale, inputs.eps, inputs.offset or 0.0
    elif isinstance(inputs, Gated):
        kind = CORE_ACTIVATIONS[inputs.activation]
    y = jax.ffi.ffi_call("dart_product", jax.ShapeDtypeStruct((len(rows), d_out), x.dtype))(
        rows,
        or_nothing(scale),
        or_nothing(bias),
        or_nothing(residual),
        used_rows(),
        *weights.parts,
        input=kind,
        eps=np.float32(eps),
        offset=np.float32(offset),
        **described(weights),
    )
    return y.reshape(*x.shape[:-1], d_out)


def type_numbers(*matrices: Tiles) -> np.ndarray:
    """Returns the core's numbers of the types of all parts, int32."""
    types = [type for matrix in matrices for type in matrix.types]
    return np.array([_core.weight_types[type] for type in types], np.int32)


def described(*matrices: Tiles) -> dict[str, np.ndarray]:
    """Returns the description of matrices for the core, one after another: parts and inputs of
    each, and types and outputs of each part."""
    return {
        "counts": np.array([len(matrix.parts) for matrix in matrices], np.int32),
        "ins": np.array([matrix.d_in for matrix in matrices], np.int64),
        "types": type_numbers(*matrices),
        "outs": np.array([out for matrix in matrices for out in matrix.outs], np.int64),
    }


def _check_core() -> None:
    if not available():
        raise RuntimeError("weights in tiles need the C++ core, which this jaxlib cannot call")
