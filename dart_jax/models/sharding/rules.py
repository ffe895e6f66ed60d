"""Axis of each of a model's weights that the devices of the mesh's axis "model" share.

As in Megatron-LM (Shoeybi et al., arXiv 1909.08053): the projections that read the residual stream
are split by their outputs, so that each device has some heads and some columns of the MLP, and
those that write it by their inputs; what they write is a part of a sum. The head is split by the
vocabulary, a mixture by its experts. A drafter's projection of the target's features is split by
its inputs. All else is small and on every device, and so is the table of embeddings, of which a
step reads a few rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from jax.tree_util import GetAttrKey

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DraftLayerConfig
from dart_jax.models.sharding.mesh import MODEL

OUT, IN, EXPERTS = -1, -2, 0

SplitConfig = TargetConfig | DraftLayerConfig
AnySplitConfig = TypeVar("AnySplitConfig", bound=SplitConfig)

# By the component of a weight's path that names it. Of a bias, the axis of outputs is split.
_OUT = "q_proj k_proj v_proj kv_proj qkv_proj gate_proj up_proj gate_up_proj lm_head"
AXES: dict[str | int, int] = {
    **dict.fromkeys(_OUT.split(), OUT),
    **dict.fromkeys(("o_proj", "down_proj", "fc"), IN),
    "experts": EXPERTS,
}
# Scales of norms over all heads of a device, where they are not of one head.
_HEAD_NORMS = ("q_norm", "k_norm")


def spec_of(config: SplitConfig | None, names: Sequence[str | int], dims: int) -> P:
    """Returns the spec of one of a model's parameters, given its path and its number of dimensions;
    `config` is None where a program does not use the model."""
    axis = next((AXES[name] for name in names if name in AXES), None)
    if config is not None and config.norms_all_heads and any(name in _HEAD_NORMS for name in names):
        axis = OUT
    # Of outputs: all devices have all of them.
    if axis is None or (axis == IN and names[-1] in ("bias", "scale")):
        return P()
    parts: list[str | None] = [None] * dims
    parts[axis] = MODEL
    return P(*parts)


def model_specs(config: SplitConfig | None, params: Any) -> Any:
    """Returns the specs of a model's parameters, or of their shapes, in the same nested dicts."""

    def spec(path: Any, leaf: Any) -> P:
        # The parts of a matrix in 8 bits are attributes.
        names = [key.name if isinstance(key, GetAttrKey) else key.key for key in path]
        return spec_of(config, names, len(leaf.shape))

    return jax.tree.map_with_path(spec, params)


def check_divides(config: SplitConfig, mesh: Mesh | AbstractMesh) -> None:
    """Checks that a model can be split.

    Raises:
      UserError: something does not divide evenly.
    """
    count = mesh.shape[MODEL]
    sizes = {"attention heads": config.num_attention_heads, **config.shared_sizes}
    for what, size in sizes.items():
        if size % count:
            raise UserError(f"{count} devices of a mesh cannot share {size} {what} evenly")
    heads = config.num_key_value_heads
    if heads % count and count % heads:
        raise UserError(
            f"{count} devices of a mesh cannot share {heads} heads of keys and values evenly, nor "
            "have one of them each"
        )


def divides(config: SplitConfig, mesh: Mesh | AbstractMesh) -> bool:
    """True if a model can be split."""
    try:
        check_divides(config, mesh)
    except UserError:
        return False
    return True


def with_kv_heads(config: AnySplitConfig, mesh: Mesh | AbstractMesh) -> AnySplitConfig:
    """Returns the config with a head of keys and values for each device, at least: where there are
    fewer, several devices have the same."""
    heads = max(config.num_key_value_heads, mesh.shape[MODEL])
    return dataclasses.replace(config, num_key_value_heads=heads)


def one_device(config: AnySplitConfig, count: int) -> AnySplitConfig:
    """Returns the shapes of the part of one of `count` devices."""
    return dataclasses.replace(
        config,
        num_attention_heads=config.num_attention_heads // count,
        num_key_value_heads=config.num_key_value_heads // count,
        intermediate_size=config.intermediate_size // count,
    )
