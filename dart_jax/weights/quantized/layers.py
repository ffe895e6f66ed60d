"""What the methods of quantisation share: the stored tensors of one linear layer, and refusals."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.quantized.arithmetic import dequantize, in_blocks
from dart_jax.weights.safetensors_file import Tensor

FLOATS = ("float32", "bfloat16", "float16")
FP8 = "float8_e4m3fn"


@dataclasses.dataclass(frozen=True)
class Layer:
    """The stored tensors of a linear layer.

    Attributes:
      weight: the name of the float weight that they stand for.
      parts: by the ending of their names; that of a tensor named like the weight itself is "".
      endings: of the method (see `Method`).
    """

    weight: str
    parts: dict[str, Tensor]
    endings: Mapping[str, str]

    def name(self, ending: str) -> str:
        """The name of a part."""
        return self.weight.removesuffix(self.endings.get(ending, "")) + ending

    def need(
        self, ending: str, dtypes: Collection[str], shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """Returns a part after checking it.

        Args:
          ending: of its name.
          dtypes: the allowed ones.
          shape: the expected one; axes of length 1 may be missing or in another place, and what is
            read has this shape. None for any matrix or, of fused experts, stack of matrices.

        Raises:
          UserError: it is missing or does not fit; the message names it.
        """
        name, tensor = self.name(ending), self.parts.get(ending)
        if tensor is None:
            raise UserError(f"missing {name}")
        if tensor.dtype.name not in dtypes:
            raise UserError(f"{name} has dtype {tensor.dtype}, not {' or '.join(dtypes)}")
        if shape is None:
            if len(tensor.shape) < 2 or 0 in tensor.shape:
                raise UserError(f"{name} has shape {tensor.shape}, which is no matrix")
            return tensor
        if [n for n in tensor.shape if n != 1] != [n for n in shape if n != 1]:
            raise UserError(
                f"{name} has shape {tensor.shape}, its layer and quantization_config require "
                f"{shape}"
            )
        return Tensor(shape, tensor.dtype, lambda: tensor.read().reshape(shape))

    def need_matrix(self, ending: str, dtypes: Collection[str]) -> Tensor:
        """Returns a part with exactly two axes; otherwise as `need`."""
        tensor = self.need(ending, dtypes)
        if len(tensor.shape) != 2:
            raise UserError(f"{self.name(ending)} has shape {tensor.shape}, which is no matrix")
        return tensor

    def read_groups(self, ending: str, size: int, block: int) -> np.ndarray:
        """Reads which group of scales each input belongs to: integers [size]. Those of files that
        mark them as unused by -1 are blocks of `block` consecutive inputs.

        Raises:
          UserError: there are scales of fewer groups; the message names the tensor.
        """
        index = self.need(ending, ("int32", "int64"), (size,)).read()
        if (index == -1).any():
            return in_blocks(size, block)
        groups = -(-size // block)
        if size and (index.min() < 0 or index.max() >= groups):
            raise UserError(
                f"{self.name(ending)} names groups {index.min()} to {index.max()}, and there are "
                f"scales of {groups}"
            )
        return index


class Method(abc.ABC):
    """A way to store linear layers, configured by a `quantization_config`.

    Attributes:
      endings: endings of the names of stored tensors -> how the name of the weight ends instead.
    """

    endings: ClassVar[Mapping[str, str]]

    @abc.abstractmethod
    def weight(self, layer: Layer) -> Tensor:
        """Returns the float weight of a layer, which reads and converts when it is read.

        Raises:
          UserError: tensors are missing or do not fit; the message names one.
        """

    def split(self, name: str) -> tuple[str, str]:
        """Returns the name of the weight that a stored tensor belongs to, and its ending."""
        for ending, replacement in self.endings.items():
            if name.endswith(ending):
                return name.removesuffix(ending) + replacement, ending
        return name, ""


def float_weight(shape: tuple[int, ...], read: Callable[[], np.ndarray]) -> Tensor:
    """Returns a layer's weight, [out, in] or, of fused experts, [E, out, in].

    It is float32, whatever the scales are: the methods' own programs round the products of values
    and scales to the dtype that they compute in, which is left to the reader here.
    """
    return Tensor(shape, np.dtype(np.float32), read)


def blocks(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """The number of blocks in the last two axes of a shape; smaller ones at the edges count."""
    *experts, out, size = shape
    return (*experts, -(-out // block[0]), -(-size // block[1]))


def scaled(
    layer: Layer, values: Tensor, block: tuple[int, int], scale: str, zero: str = ""
) -> Tensor:
    """Returns the weight of a layer that stores each of its numbers by itself.

    Args:
      layer: the layer.
      values: [.., out, in].
      block: outputs and inputs that share a scale.
      scale: the ending of the scales.
      zero: the ending of the zeros, which are subtracted if there are any; "" for none.

    Raises:
      UserError: the scales are missing, or tensors do not fit.
    """
    shape = blocks(values.shape, block)
    scales, zeros = layer.need(scale, FLOATS, shape), None
    if zero and zero in layer.parts:
        zeros = layer.need(zero, (values.dtype.name, "int8"), shape)

    def read() -> np.ndarray:
        out, size = values.shape[-2:]
        rows, columns = in_blocks(out, block[0]), in_blocks(size, block[1])
        shifts = None if zeros is None else zeros.read()
        return dequantize(values.read(), rows, columns, scales.read(), shifts)

    return float_weight(values.shape, read)


def refusal(what: str) -> UserError:
    """Returns the error to raise for a `quantization_config` that is not supported."""
    return UserError(
        f"config.json has a quantization_config with {what}, which is not supported; pass the "
        "unquantised checkpoint (weights_dtype='int8' rounds it when it is loaded), or remove the "
        "field if the files hold floats"
    )


def positive(config: Mapping[str, Any], name: str) -> int:
    """Reads a size: an integer of at least 1, or -1, which stands for all.

    Raises:
      UserError: it is missing or something else.
    """
    value = config.get(name)
    if type(value) is not int or (value < 1 and value != -1):
        raise refusal(f"{name}={value!r}")
    return value


def block_size(given: object, name: str) -> tuple[int, int]:
    """Reads the rows and columns of a block; raises UserError for anything else."""
    sizes = given.split("x") if isinstance(given, str) else given
    try:
        rows, columns = map(int, sizes)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        rows = columns = 0
    if rows < 1 or columns < 1:
        raise refusal(f"{name}={given!r}")
    return rows, columns
