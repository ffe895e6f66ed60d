"""Shapes of published targets by name, from their `config.json` files, and of drafters for them;
the least that a step must move and compute: weights and used rows of the caches, once, and matrix
products. Of a mixture's experts those count that rows reach if they are drawn at random. Models
with random weights in a shape, created on their devices."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.search.config import SearchWay
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.errors import UserError, meant
from dart_jax.loading import check_room
from dart_jax.model import DEMO, DartModel
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.config_json.block_formats import default_layers
from dart_jax.models.drafter_config import (
    BlockConfig,
    DartConfig,
    DraftLayerConfig,
)
from dart_jax.models.layers.dense import Params
from dart_jax.models.networks.pure import abstract_params
from dart_jax.models.networks.sizes import cache_row, weight_bytes
from dart_jax.models.platform.execution import Execution
from dart_jax.models.rope import Rope
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.models.sharding.placement import replicate
from dart_jax.models.sharding.program import ALL
from dart_jax.models.sharding.rules import check_divides, model_specs, with_kv_heads
from dart_jax.ngram import NgramModel
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights.checkpoint import read_target_config, resolve_dtype
from dart_jax.weights.user_cache import enable_compilation_cache

AnyDraftLayer = TypeVar("AnyDraftLayer", bound=DraftLayerConfig)

# Mask rows of the paper's drafters, which draft 8 positions.
_DRAFT_LENGTH = 7
# Of the published block drafters: DFlash's have blocks of 16, DSpark's of 7 and pair scores.
_BLOCK_LAYERS = 5
BlockMethod = Literal["dflash", "dspark"]
_BLOCKS: Mapping[BlockMethod, Mapping[str, Any]] = {
    "dflash": {"block_size": 16},
    "dspark": {"block_size": 7, "shifted": True, "pair_rank": 256},
}


def _qwen3(hidden: int, mlp: int, layers: int, heads: int, **others: Any) -> TargetConfig:
    options: dict[str, Any] = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128}
    options |= {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers}
    return TargetConfig(num_attention_heads=heads, **options | others)


def _moe(hidden: int, layers: int, heads: int, width: int) -> TargetConfig:
    moe = MoEConfig(128, 8, width, norm_topk_prob=True)
    kind = {"num_key_value_heads": 4, "model_type": "qwen3_moe", "moe": moe}
    return _qwen3(hidden, 3 * hidden, layers, heads, **kind)


def _llama(hidden: int, mlp: int, layers: int, heads: int, **others: Any) -> TargetConfig:
    options = {"rope": Rope(5e5), "max_position_embeddings": 8192} | others
    options |= {"vocab_size": 128256, "rms_norm_eps": 1e-5, "model_type": "llama"}
    return _qwen3(hidden, mlp, layers, heads, **options)


_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SCALING |= {"original_max_position_embeddings": 8192}
_ROPE = Rope(5e5, "llama3", tuple(_SCALING.items()))
_TINY = {"vocab_size": 512, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
_SHAPES: Mapping[str, TargetConfig] = {
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tie_word_embeddings=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tie_word_embeddings=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, tie_word_embeddings=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40),
    "qwen3-32b": _qwen3(5120, 25600, 64, 64),
    "qwen3-30b-a3b": _moe(2048, 48, 32, 768),
    "qwen3-235b-a22b": _moe(4096, 94, 64, 1536),
    "llama-3-8b": _llama(4096, 14336, 32, 32),
    "llama-3-70b": _llama(8192, 28672, 80, 64),
    "llama-3.1-70b": _llama(8192, 28672, 80, 64, rope=_ROPE, max_position_embeddings=131072),
    "tiny": _qwen3(64, 96, 7, 4, **_TINY),  # for tests
}
NAMES = ("demo", *_SHAPES)


@functools.cache
def target_of(name: str) -> TargetConfig:
    """Returns the target of this name, in upper or lower case; `demo` is the bundled one. Raises
    UserError if there is none."""
    name = name.lower()
    if name == "demo":
        return read_target_config(DEMO / "target")
    if name not in _SHAPES:
        cure = meant(name, NAMES, f"pass one of {', '.join(NAMES)}")
        raise UserError(f"no shape {name!r}; {cure}")
    return _SHAPES[name]


def drafter_of(target: TargetConfig) -> DartConfig:
    """Returns the DART drafter that would be trained for a target: its layer has the same shape."""
    return DartConfig.for_target(target, draft_length=_DRAFT_LENGTH)


def block_drafter_of(target: TargetConfig, method: BlockMethod) -> BlockConfig:
    """Returns the block drafter that would be published for a target: five layers of the same
    shape, and the target's embedding and head."""
    outputs = default_layers(target.num_hidden_layers, _BLOCK_LAYERS) or []
    return BlockConfig.for_target(
        target,
        num_hidden_layers=_BLOCK_LAYERS,
        feature_layers=tuple(sorted({i + 1 for i in outputs})),  # small targets have no five
        mask_token_id=target.vocab_size - 1,
        **_BLOCKS[method],
    )


def as_loaded(
    target: TargetConfig, drafter: AnyDraftLayer, execution: Execution
) -> tuple[TargetConfig, AnyDraftLayer, Execution]:
    """Returns models as `DartModel.from_pretrained` has them on GPUs and TPUs: where devices share
    them, each has a head of keys and values, at least; there and in 8 bits the target's head is
    untied. Raises UserError if the devices cannot share the target."""
    devices = execution.devices.with_drafter(drafter)
    if devices.mesh is not None:
        check_divides(target, devices.mesh)
        target = with_kv_heads(target, devices.mesh)
        if devices.split_drafter:
            drafter = with_kv_heads(drafter, devices.mesh)
    if devices.mesh is not None or execution.weights.int8:
        target = dataclasses.replace(target, tie_word_embeddings=False)
    return target, drafter, dataclasses.replace(execution, devices=devices)


_INT = _FLOAT = 4  # bytes of ids and of logits


class Cost(NamedTuple):
    """The least work of a step: bytes read and written, operations of matrix products, two per
    multiply-add."""

    bytes: int
    operations: int

    def limit(self, bandwidth: float, rate: float) -> float:
        """Returns seconds at `bandwidth` bytes and `rate` operations per second."""
        return max(self.bytes / bandwidth, self.operations / rate)


def cost(config: DecodeConfig, dtype: Any, batch: int, context: int) -> Cost:
    """Returns the cost of a step on one device, with weights and caches of a dtype and `context`
    cached tokens of each sequence; intermediate results need not cross the memory. The drafter, if
    any, is DART's."""
    target, item, b = config.target, jnp.dtype(dtype).itemsize, batch
    nodes, path = config.nodes + 1, config.max_depth + 1
    read, products = _read(target, b * nodes)
    width = target.num_hidden_layers * target.num_attention_heads * target.head_dim
    moved = item * (read + b * nodes * target.hidden_size)
    moved += b * cache_row(target, dtype) * (context + path)
    operations = 2 * b * nodes * (products + 2 * width * (context + nodes))
    if isinstance(config.drafter, DartConfig):
        drafter = config.drafter.shortened(path - 1)
        traffic, more = _draft(drafter, dtype, b, context, path)
        moved += traffic + b * (path - 1) * config.candidates * (_INT + _FLOAT)
        operations += more
    return Cost(moved, operations)


def _draft(drafter: DartConfig, dtype: Any, b: int, context: int, path: int) -> tuple[int, int]:
    """Returns a drafter's bytes besides features and logits, and its operations."""
    masks = drafter.draft_length
    # Mask rows are the same until attention: one is computed for all.
    rows = {"fc": path, "q_proj": 2, "k_proj": path + 1, "v_proj": path + 1}
    rows |= {"o_proj": 1 + masks, "mlp": 1 + masks, "lm_head": drafter.num_positions}
    products = sum(
        math.prod(shape) * next(rows[name] for name in names if name in rows)
        for names, shape in _shapes(drafter)
        if len(shape) > 1
    )
    width = drafter.num_attention_heads * drafter.head_dim
    products += 2 * width * (1 + masks) * (context + path + masks)
    embeddings = jnp.dtype(dtype).itemsize * b * path * drafter.hidden_size
    rows_read = b * cache_row(drafter, dtype) * (context + path)
    return weight_bytes(drafter, dtype) + embeddings + rows_read, 2 * b * products


def _read(target: TargetConfig, rows: int) -> tuple[int, int]:
    """Returns how many weights a forward over `rows` rows reads, and with how many each row is
    multiplied: all except the embeddings, which are read if they are also the head, and the experts
    that no row reaches."""
    moe, read, products = target.moe, 0.0, 0.0
    share = 1 if moe is None else moe.num_experts_per_tok / moe.num_experts
    for names, shape in _shapes(target):
        if "embed_tokens" in names and not target.tie_word_embeddings:
            continue
        size, expert = math.prod(shape), "experts" in names
        read += size * (1 - (1 - share) ** rows if expert else 1)
        products += size * (share if expert else 1) * (len(shape) > 1)
    return round(read), round(products)


def _shapes(config: TargetConfig | DartConfig) -> list[tuple[list[str], tuple[int, ...]]]:
    """Returns the names in the path of each parameter, and its shape."""
    leaves = jax.tree.leaves_with_path(abstract_params(config))
    return [([str(getattr(x, "key", "")) for x in path], leaf.shape) for path, leaf in leaves]


# The usual initialisation of linear layers, which keeps activations finite.
_STD = 0.02


def random_model(
    name: str, dtype: Any, execution: Execution, search: SearchWay = "auto"
) -> DartModel:
    """Creates a model in a shape, with a DART drafter of that shape and the demo's tokenizer; the
    demo's shape has its n-gram model. On a CPU its head is untied, as when a model is loaded.
    Raises UserError if devices cannot share or hold it."""
    target = target_of(name)
    target, drafter, execution = as_loaded(target, drafter_of(target), execution)
    check_room(target, drafter, np.dtype(dtype), execution)
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
