"""The form of a loaded model's weights: joined, where projections read the same input, so that one
product computes them; and rounded or in tiles. Checkpoints and training have none of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from dart_jax.memory import HugePages
from dart_jax.models.config import TargetConfig
from dart_jax.models.kernels.choices import WeightsDtype
from dart_jax.models.kernels.int8 import (
    EXACT,
    Int8,
    Kernel,
    Path,
    changed,
    round_kernel,
    round_params,
)
from dart_jax.models.kernels.tiles import Tiles, join, pack_exactly, pack_int8, settle
from dart_jax.models.layers.dense import Params
from dart_jax.models.sharding.rules import SplitConfig, model_specs

# Joined projection -> its parts, in order. DART and EAGLE-3 drafters compute queries and keys of
# different rows.
_Joint = dict[str, tuple[str, ...]]
_TARGET: _Joint = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_DRAFTER: _Joint = {"kv_proj": ("k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


@dataclasses.dataclass(frozen=True)
class WeightsForm:
    """The form in which the weights of a loaded model's products are kept.

    Attributes:
      dtype: as in the files, as floats, or in 8 bits: in tiles in blocks (see `kernels.tiles`),
        otherwise with a scale for each output (see `kernels.int8`). Without tiles, blocks in files
        become floats, too.
      fused: whether projections are joined (see `fuse`).
      tiles: whether weights are in the tiles that the C++ core reads.
    """

    dtype: WeightsDtype = "stored"
    fused: bool = False
    tiles: bool = False

    @property
    def int8(self) -> bool:
        """Returns True if weights are in 8 bits, with a scale for each output."""
        return self.dtype == "int8" and not self.tiles

    @property
    def blocks(self) -> bool:
        """Returns True if blocks in files are computed as they are stored."""
        return self.dtype == "stored" and self.tiles

    def of_drafter(self, target: Params) -> WeightsForm:
        """Returns the form of this target's drafter that reads its features: rounded to 8 bits with
        weights in blocks. Drafts that are a little worse cost less than reading them in 16 bits."""
        return dataclasses.replace(self, dtype="int8") if in_blocks(target) else self

    @property
    def tile(self) -> Callable[..., Tiles]:
        """Stores weights [in, out] in tiles, or [out, in] with `transposed=True`."""
        return pack_int8 if self.dtype == "int8" else pack_exactly

    def prepare(
        self, params: Params, config: SplitConfig | None = None, mesh: Mesh | None = None
    ) -> Params:
        """Returns loaded parameters in this form; consumes `params`.

        Args:
          params: as in the files, or rounded already.
          config: the model's, where devices share it.
          mesh: these devices, or None for one that has all parameters.
        """
        if self.int8:
            params = round_params(params)
        if self.fused and mesh is not None and config is not None:
            return _fuse_parts(mesh, config, params)
        params = pack(params, self.tile) if self.tiles else params
        params = fuse(params) if self.fused else params
        if self.tiles:
            memory = HugePages()
            params = changed(params, lambda _, x: settle(x, memory) if isinstance(x, Tiles) else x)
        return params


def untie(
    config: TargetConfig,
    params: Params,
    form: WeightsForm = WeightsForm(),
    mesh: Mesh | None = None,
) -> tuple[TargetConfig, Params]:
    """Gives a tied head its own kernel [D, V], of a form and split among the devices of a mesh;
    returns a model unchanged that is untied or in tiles.

    On CPU the product with the transposed table [V, D] takes three times as long for the few rows
    of a tree; the copy costs V * D weights. Tiles serve both.
    """
    if not config.tie_word_embeddings or form.tiles:
        return config, params
    table = params["embed_tokens"]
    transpose: Callable[[jax.Array], Kernel] = jnp.transpose
    if form.int8:
        transpose = partial(round_kernel, transposed=True)

    def head(table: jax.Array) -> Params:
        return {"lm_head": {"kernel": transpose(table)}}

    config = dataclasses.replace(config, tie_word_embeddings=False)
    if mesh is None:
        return config, {**params, **head(table)}
    specs = model_specs(config, jax.eval_shape(head, table))
    parts = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return config, {**params, **jax.jit(head, out_shardings=parts)(table)}


def fuse(params: Params) -> Params:
    """Joins a target's or drafter's projections; drops the parts from `params` on the way, so that
    memory holds only one layer's twice."""
    return _fuse(params, _DRAFTER if "fc" in params else _TARGET)


def pack(params: Params, tile: Callable[..., Tiles]) -> Params:
    """Stores the kernels of all linear layers, the embedding and the second factors of pair scores
    in tiles, unless they are, by a function of `kernels.tiles`; drops them from `params` on the
    way. What chooses experts, and an embedding that is not the head, too, keeps its values."""
    own_head = "lm_head" in params or "fc" in params

    def packed(path: Path, value: Any) -> Any:
        name = path[-1]
        if isinstance(value, Tiles) or name not in ("kernel", "embed_tokens", "next"):
            return value
        exact = not {*EXACT}.isdisjoint(path) or (name == "embed_tokens" and own_head)
        transposed = {} if name == "kernel" else {"transposed": True}
        return (pack_exactly if exact else tile)(value, **transposed)

    return changed(params, packed)


def in_blocks(params: Params) -> bool:
    """Returns True if some weights are in blocks of 4 to 8 bits."""
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Tiles))
    return any(isinstance(leaf, Tiles) and leaf.in_blocks for leaf in leaves)


def is_fused(params: Params) -> bool:
    """Returns True if projections that read the same input are joined."""
    is_leaf = lambda x: isinstance(x, Int8 | Tiles)  # noqa: E731
    paths = [path for path, _ in jax.tree.leaves_with_path(params, is_leaf=is_leaf)]
    return not {*_DRAFTER, *_TARGET}.isdisjoint(key.key for path in paths for key in path)


def _fuse(params: Params, joint: _Joint) -> Params:
    result: Params = {}
    for name, parts in joint.items():
        # The experts of a mixture are arrays, not modules.
        if all(isinstance(params.get(part), dict) for part in parts):
            modules = [params.pop(part) for part in parts]
            result[name] = jax.tree.map(_join, *modules, is_leaf=lambda x: isinstance(x, Tiles))
    for name, value in params.items():
        # Layers of block drafters are like the target's.
        inner = _TARGET if name == "self_attn" else joint
        result[name] = _fuse(value, inner) if isinstance(value, dict) else value
    return result


def _join(*weights: Any) -> Any:
    """Joins kernels or biases of one kind along their outputs."""
    if isinstance(weights[0], Tiles):
        return join([*weights])
    return jnp.concatenate(weights, axis=-1)


def _fuse_parts(mesh: Mesh, config: SplitConfig, params: Params) -> Params:
    """`fuse` for the part of every device."""
    parts = model_specs(config, params)
    joint = model_specs(config, jax.eval_shape(fuse, params))
    run = jax.shard_map(fuse, mesh=mesh, in_specs=(parts,), out_specs=joint, check_vma=False)
    return jax.jit(run, donate_argnums=0)(params)
