"""The form of a loaded model's weights: joined, where projections read the same input, so that one
product computes them; and packed, for the C++ core. Checkpoints and training have neither.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dart_jax.models.cpu.tiles import Packed, is_packed, packing
from dart_jax.models.layers import Params

# Joined projection -> its parts, in order. Drafters compute queries and keys of different rows.
_TARGET = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_DRAFTER = {"kv_proj": ("k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def fuse(params: Params) -> Params:
    """Joins a target's or drafter's projections; drops the parts from `params` on the way, so that
    memory holds only one layer's twice."""
    return _fuse(params, _DRAFTER if "fc" in params else _TARGET)


def pack(params: Params, weights: Packed) -> Params:
    """Packs the kernels of all linear layers for the C++ core (see `cpu.tiles`); drops them from
    `params` on the way."""
    packed: Params = {}
    for name in [*params]:
        value = params.pop(name)
        if isinstance(value, dict):
            value = pack(value, weights)
        elif name == "kernel" and not is_packed(value):
            value = packing(weights)(value)
        packed[name] = value
    return packed


def is_fused(params: Params) -> bool:
    """Whether `fuse` returned these parameters."""
    return any(name in _DRAFTER or name in _TARGET or _within(x) for name, x in params.items())


def _within(params: Any) -> bool:
    return isinstance(params, dict) and is_fused(params)


def _fuse(params: Params, joined: dict[str, tuple[str, ...]]) -> Params:
    fused: Params = {}
    for name, parts in joined.items():
        # The experts of a mixture are arrays, not modules.
        if all(isinstance(params.get(part), dict) for part in parts):
            taken = [params.pop(part) for part in parts]
            fused[name] = jax.tree.map(lambda *x: jnp.concatenate(x, axis=-1), *taken)
    for name, value in params.items():
        fused[name] = _fuse(value, joined) if isinstance(value, dict) else value
    return fused
