"""Models with random weights in a shape, created on their devices."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.search.config import SearchWay
from dart_jax.decoding.state import DecodeParams
from dart_jax.model import DEMO, DartModel
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.layers import Params
from dart_jax.models.platform.execution import Execution
from dart_jax.models.pure import abstract_params
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.models.sharding.placement import replicate
from dart_jax.models.sharding.program import ALL
from dart_jax.models.sharding.rules import model_specs
from dart_jax.ngram import NgramModel
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights.checkpoint import resolve_dtype
from dart_jax.weights.user_cache import enable_compilation_cache
from eval.latency.shapes import as_loaded, drafter_of, target_of

# The usual initialisation of linear layers, which keeps activations finite.
_STD = 0.02


def random_model(
    name: str, dtype: Any, execution: Execution, search: SearchWay = "auto"
) -> DartModel:
    """Creates a model in a shape, with a DART drafter of that shape and the demo's tokenizer; the
    demo's shape has its n-gram model. On a CPU its head is untied, as when a model is loaded.

    Raises:
      UserError: devices cannot share it.
    """
    target = target_of(name)
    target, drafter, execution = as_loaded(target, drafter_of(target), execution)
    if jax.default_backend() == "cpu":
        target = dataclasses.replace(target, tie_word_embeddings=False)
    mesh = execution.devices.mesh
    ids = jnp.arange(drafter.draft_vocab_size, dtype=jnp.int32)
    params: DecodeParams = {
        "target": random_params(target, 0, dtype, execution),
        "drafter": random_params(drafter, 1, dtype, execution),
        "draft_ids": ids if mesh is None else replicate(mesh, ids),
    }
    ngram = NgramModel.load(DEMO / "ngram.dng") if name == "demo" else None
    tokenizer = Tokenizer.load(DEMO / "target")
    execution = execution.beside(target, params["target"])
    parts = target, drafter, jax.block_until_ready(params), ngram, tokenizer, (), execution
    return DartModel(*parts, search)


def model_of(shape: str, choice: ModelChoice) -> DartModel:
    """Creates a model in a shape, without an n-gram model, computed as the options choose."""
    enable_compilation_cache()
    dtype = resolve_dtype(choice.dtype)
    execution = Execution.here(choice.attention, choice.weights, choice.kv, dtype)
    if choice.mesh is not None:
        execution = execution.on(MeshShape.parse(choice.mesh).make())
    model = random_model(shape.lower(), dtype, execution, choice.search)
    return dataclasses.replace(model, ngram=None)


def random_params(
    config: TargetConfig | DartConfig, seed: int, dtype: Any, execution: Execution
) -> Params:
    """Returns random parameters as they are used, created on their devices one by one; the scales
    of norms are 1."""
    shapes, mesh = abstract_params(config, execution.weights.fused), execution.devices.mesh
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    shards = not config.traits.features or execution.devices.split_drafter
    specs = model_specs(config, shapes) if shards else jax.tree.map(lambda _: ALL, shapes)
    specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P))
    keys = jax.random.split(jax.random.key(seed, impl="rbg"), len(leaves))
    params = []
    for (path, leaf), key, spec in zip(leaves, keys, specs, strict=True):
        where = None if mesh is None else NamedSharding(mesh, spec)
        if path[-1].key == "scale":
            params.append(jnp.ones(leaf.shape, dtype, device=where))
        else:
            make = partial(_normal, shape=leaf.shape, dtype=jnp.dtype(dtype))
            params.append(jax.jit(make, out_shardings=where)(key))
    form = dataclasses.replace(execution.weights, fused=False)  # they are joined already
    return form.prepare(jax.tree.unflatten(tree, params))


def _normal(key: jax.Array, *, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return _STD * jax.random.normal(key, shape, dtype)
