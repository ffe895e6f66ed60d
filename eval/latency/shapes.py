"""Shapes of targets, by name, and random weights for them.

The numbers are from the published `config.json` files. The drafter's layer has the target's shape,
as in `train.objective.drafter_shape`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, DraftLayerConfig
from dart_jax.models.layers import Params
from dart_jax.models.platform.execution import Execution
from dart_jax.models.pure import abstract_params
from dart_jax.models.rope import Rope
from dart_jax.models.sharding.program import ALL
from dart_jax.models.sharding.rules import check_divides, model_specs, with_kv_heads
from dart_jax.weights.checkpoint import read_target_config
from eval.latency.devices import random_array

AnyDraftLayer = TypeVar("AnyDraftLayer", bound=DraftLayerConfig)

# The usual initialisation of linear layers, which keeps activations finite.
_STD = 0.02

# Mask rows of the paper's drafters, which draft 8 positions.
_DRAFT_LENGTH = 7


def _qwen3(hidden: int, mlp: int, layers: int, heads: int, *, tied: bool) -> TargetConfig:
    return TargetConfig(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=tied,
    )


def _qwen3_moe(hidden: int, layers: int, heads: int, kv_heads: int, moe: MoEConfig) -> TargetConfig:
    return TargetConfig(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        rope=Rope(1e6),
        tie_word_embeddings=False,
        model_type="qwen3_moe",
        moe=moe,
    )


def _llama3(hidden: int, mlp: int, layers: int, heads: int) -> TargetConfig:
    return TargetConfig(
        vocab_size=128256,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        rope=Rope(5e5),
        max_position_embeddings=8192,
        model_type="llama",
    )


def _llama31(hidden: int, mlp: int, layers: int, heads: int) -> TargetConfig:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return dataclasses.replace(
        _llama3(hidden, mlp, layers, heads),
        rope=Rope(5e5, "llama3", tuple(scaling.items())),
        max_position_embeddings=131072,
    )


_SHAPES: Mapping[str, TargetConfig] = {
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, tied=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40, tied=False),
    "qwen3-32b": _qwen3(5120, 25600, 64, 64, tied=False),
    "qwen3-30b-a3b": _qwen3_moe(2048, 48, 32, 4, MoEConfig(128, 8, 768, norm_topk_prob=True)),
    "qwen3-235b-a22b": _qwen3_moe(4096, 94, 64, 4, MoEConfig(128, 8, 1536, norm_topk_prob=True)),
    "llama-3-8b": _llama3(4096, 14336, 32, 32),
    "llama-3-70b": _llama3(8192, 28672, 80, 64),
    "llama-3.1-70b": _llama31(8192, 28672, 80, 64),
    "tiny": TargetConfig(  # for tests
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    ),
}
NAMES = ("demo", *_SHAPES)
QWEN3 = tuple(name for name in _SHAPES if name.startswith("qwen3") and "-a" not in name)


@functools.cache
def target_of(name: str) -> TargetConfig:
    """Returns the target of this name, in upper or lower case; `demo` is the bundled one.

    Raises:
      UserError: there is no shape of this name.
    """
    name = name.lower()
    if name == "demo":
        return read_target_config(DEMO / "target")
    if name not in _SHAPES:
        raise UserError(f"no shape {name!r}; pass one of {', '.join(NAMES)}")
    return _SHAPES[name]


def drafter_of(target: TargetConfig) -> DrafterConfig:
    """Returns the DART drafter that would be trained for a target."""
    return DrafterConfig.for_target(target, draft_length=_DRAFT_LENGTH)


def as_loaded(
    target: TargetConfig, drafter: AnyDraftLayer, execution: Execution
) -> tuple[TargetConfig, AnyDraftLayer, Execution]:
    """Returns models as `DartModel.from_pretrained` has them on GPUs and TPUs: where devices share
    them, each has a head of keys and values, at least; there and in 8 bits the target's head is
    untied."""
    execution = execution.with_drafter(drafter)
    if execution.mesh is not None:
        target = with_kv_heads(target, execution.mesh)
        if execution.split_drafter:
            drafter = with_kv_heads(drafter, execution.mesh)
    if execution.mesh is not None or execution.rounded:
        target = dataclasses.replace(target, tie_word_embeddings=False)
    return target, drafter, execution


def configs(name: str, execution: Execution) -> tuple[TargetConfig, DrafterConfig, Execution]:
    """Returns the configurations of a shape as they are loaded here, and how they are computed; on
    a CPU heads are untied.

    Raises:
      UserError: there is no shape of this name, or the devices cannot share it.
    """
    target = target_of(name)
    drafter = drafter_of(target)
    if execution.mesh is not None:
        check_divides(target, execution.mesh)
    target, drafter, execution = as_loaded(target, drafter, execution)
    if jax.default_backend() == "cpu":
        target = dataclasses.replace(target, tie_word_embeddings=False)
    return target, drafter, execution


@functools.cache
def parameters(config: TargetConfig | DraftLayerConfig) -> int:
    """Returns the number of parameters; allocates nothing. Only one layer of a dense target is
    counted, since all are the same."""
    if isinstance(config, DraftLayerConfig) or config.moe is not None:
        return _count(config)
    one, two = (_count(dataclasses.replace(config, num_hidden_layers=n)) for n in (1, 2))
    return one + (config.num_hidden_layers - 1) * (two - one)


def _count(config: TargetConfig | DraftLayerConfig) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(config)))


def random_params(
    config: TargetConfig | DrafterConfig,
    seed: int,
    dtype: Any,
    execution: Execution | None = None,
) -> Params:
    """Returns random parameters as they are used, created on the device one by one; the scales of
    norms are 1. On a mesh every device creates its part."""
    execution = execution or Execution.here()
    shapes = abstract_params(config, execution.fused)
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    keys = jax.random.split(jax.random.key(seed, impl="rbg"), len(leaves))
    params = [
        jnp.ones(leaf.shape, dtype, device=sharding)
        if path[-1].key == "scale"
        else _normal(key, leaf.shape, jnp.dtype(dtype), sharding)
        for (path, leaf), key, sharding in zip(
            leaves, keys, _shardings(config, shapes, execution), strict=True
        )
    ]
    joined = dataclasses.replace(execution, fused=False)  # they are joined already
    return joined.prepare(jax.tree.unflatten(tree, params))


def _shardings(
    config: TargetConfig | DrafterConfig, shapes: Params, execution: Execution
) -> list[Any]:
    """Where each parameter belongs; None for JAX's default device."""
    mesh = execution.mesh
    if mesh is None:
        return [None] * len(jax.tree.leaves(shapes))
    split = isinstance(config, TargetConfig) or execution.split_drafter
    specs = model_specs(config, shapes) if split else jax.tree.map(lambda _: ALL, shapes)
    is_spec = lambda x: isinstance(x, P)  # noqa: E731
    return [NamedSharding(mesh, spec) for spec in jax.tree.leaves(specs, is_leaf=is_spec)]


@partial(jax.jit, static_argnames=("shape", "dtype", "sharding"))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.Array:
    return _STD * random_array(key, shape, dtype, sharding)
