"""The first weights of a block drafter, from the target's outputs for some of the data.

A block's rows know the text only through attention and pair scores, and from random weights most of
a short training passes until either says something. What both say first is known beforehand.

Attention looks at the rows just before. RoPE turns queries and keys by their position, so that the
part of them that is the same in all rows gives scores of the distance alone; projections have no
biases, but their inputs share a direction, along which they can have such a part. With it head i
prefers the row i positions before its own.

Pair scores are the target's logits after a token, on average: its head times the mean of its hidden
states after that token, at the rank of the pair scores.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.models.drafter_config import BlockConfig
from dart_jax.models.networks.pure import Params, bind
from dart_jax.models.sharding.devices import Devices
from train.data.batch import Batch
from train.data.packed_dataset import PackedDataset
from train.run.mesh import from_main, jit_replicated
from train.teacher.teacher import Teacher, forward

# Tokens whose hidden states are averaged: of a cache, or if the target has to be run for them.
_CACHED, _RUN = 2**20, 2**16
_PER_DIMENSION = 4  # tokens per dimension, of which the inputs of projections are looked at
_AT_ONCE = 8  # packed rows of a batch
_RIDGE = 1e-3  # of the mean square of inputs along all directions
# The constant part of queries and keys, by energy over the random part, in the faster half of the
# rotated pairs: the slower ones hardly tell near rows apart.
_CONSTANT = 2.2
# Scale of the norms of queries and keys, whose square bounds scores, in roots of a head's width.
_SCALE = 2**0.5
_RARE = 4  # occurrences of a token at which its own mean counts as much as that of all

_Run = Callable[[Batch], tuple[jax.Array, jax.Array]]


def informed(
    config: BlockConfig, params: Params, teacher: Teacher, data: PackedDataset, ids: np.ndarray
) -> Params:
    """Returns a drafter's first parameters: attention begins with the rows just before, pair
    scores are those of the target's means, and logits have a deviation of 1 or less; see
    `PackedDrafter.informed`."""
    mesh = teacher.mesh
    run = jit_replicated(lambda params, batch: forward(teacher.config, params, batch, mesh), mesh)
    run = functools.partial(run, teacher.params)
    head = np.asarray(params["lm_head"]["kernel"] if config.own_head else teacher.head(ids))
    deviation = np.sqrt(config.hidden_size * np.mean(np.square(head)))
    params = {**params, "norm": {"scale": params["norm"]["scale"] / max(float(deviation), 1.0)}}
    # Of several processes each would find its own, equal but for rounding and signs.
    added = from_main(_attention(config, params, *_read(config, params, teacher, data, run)))
    params["layers"] = {i: _attending(layer, added) for i, layer in params["layers"].items()}
    if config.pair_rank:
        means, counts = _means(config, teacher, data, run)
        found = from_main(nearest_factors(means, counts, head, config.pair_rank))
        params["pairs"] = {
            name: params["pairs"][name].at[:, : table.shape[1]].set(table)
            for name, table in zip(("prev", "next"), found, strict=True)
        }
    return params


def _outputs(
    teacher: Teacher, data: PackedDataset, tokens: int, run: _Run, part: int
) -> Iterator[tuple[Batch, jax.Array | np.ndarray]]:
    """Yields batches of rows from all parts of the data, with about so many tokens and of as many
    rows at a time as devices can share; and their features (`part` 0) or hidden states (1)."""
    groups, most = Devices(teacher.mesh).groups, min(-(-tokens // data.context), data.rows)
    size = groups * -(-min(most, _AT_ONCE) // groups)
    rows = np.linspace(0, data.rows - 1, most).astype(int)
    plain = dataclasses.replace(data, outputs=None)  # nothing but the part is read of a cache
    for some in np.resize(rows, (-(-most // size), size)):
        batch = plain.batch(some)
        kept = None if data.outputs is None else data.outputs[("features", "hidden")[part]][some]
        yield batch, run(batch)[part] if kept is None else kept


def _read(
    config: BlockConfig, params: Params, teacher: Teacher, data: PackedDataset, run: _Run
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of the first layer's projections, [rows, D] each: of the context, of blocks' anchors,
    and of their mask rows."""

    def inputs(
        target: Params, own: Params, tokens: jax.Array, features: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        drafter = bind(config, own)
        embeds = drafter.embedding(bind(teacher.config, target).embed)(tokens)
        embeds = drafter.layers[0].input_layernorm(embeds.astype(jnp.float32))
        return drafter.context(features.astype(jnp.float32)), embeds

    read, found = jit_replicated(inputs, teacher.mesh), []
    for batch, features in _outputs(teacher, data, _PER_DIMENSION * config.hidden_size, run, 0):
        tokens = np.append(batch.tokens, config.mask_token_id)
        context, embeds = map(np.asarray, read(teacher.params, params, tokens, features))
        real = batch.document.reshape(-1) > 0
        context = context.reshape(-1, config.hidden_size)
        found.append((context[real], embeds[:-1][real], embeds[-1:]))
    context, text, mask = map(np.concatenate, zip(*found, strict=True))
    return context, text, mask


def _attention(
    config: BlockConfig, params: Params, context: np.ndarray, text: np.ndarray, mask: np.ndarray
) -> dict[str, np.ndarray]:
    """Additions to the kernels of queries and keys, of all layers alike, though found for what
    the first one reads. Mask tokens say nothing yet: their keys there get no constant part."""
    query = _functional([(text, 1), (mask, 1)])
    key = _functional([(context, 1), (text, 1), (mask, 0)])
    heads, kv_heads = np.arange(config.num_attention_heads), np.zeros(config.num_key_value_heads)
    added = {
        "q_proj": np.outer(query, _constant(config, params, heads)),
        "k_proj": np.outer(key, _constant(config, params, kv_heads)),
    }
    return {name: more.astype(np.float32) for name, more in added.items()}


def _attending(layer: Params, added: dict[str, np.ndarray]) -> Params:
    """A layer with more in the kernels of its queries and keys, and sharper scores."""
    attention = {**layer["self_attn"]}
    for name, more in added.items():
        attention[name] = {"kernel": attention[name]["kernel"] + more}
    for name in ("q_norm", "k_norm"):
        attention[name] = {"scale": attention[name]["scale"] * _SCALE}
    return {**layer, "self_attn": attention}


def _functional(wanted: list[tuple[np.ndarray, float]]) -> np.ndarray:
    """The vector [D] whose product with the rows [n, D] of each kind is nearest to their value, all
    kinds weighing the same."""
    width = wanted[0][0].shape[1]
    gram, moment = np.zeros((width, width)), np.zeros(width)
    for rows, value in wanted:
        gram += rows.T @ rows.astype(np.float64) / len(rows)
        moment += value * rows.mean(axis=0, dtype=np.float64)
    gram += _RIDGE * np.trace(gram) / width * np.eye(width)
    return np.linalg.solve(gram, moment)


def _constant(config: BlockConfig, params: Params, distances: np.ndarray) -> np.ndarray:
    """The constant part of queries of heads that prefer rows at these distances, or of keys at
    distance 0: [heads * h]."""
    kernel = params["layers"][0]["self_attn"]["q_proj"]["kernel"]
    random = config.hidden_size * float(jnp.mean(jnp.square(kernel)))  # energy of one dimension
    frequencies = config.rope.frequencies(config.head_dim)
    angle = -distances[:, None] * frequencies
    fast = np.arange(len(frequencies)) < -(-len(frequencies) // 2)
    size = np.sqrt(_CONSTANT * random * config.head_dim / fast.sum())
    parts = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    return (size * np.tile(fast, 2) * parts).reshape(-1)


def _means(
    config: BlockConfig, teacher: Teacher, data: PackedDataset, run: _Run
) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the target's hidden states after each token, [V, D], nearer to that of all tokens
    the rarer it is; and how often it occurs, [V]; float32."""
    sums = np.zeros((config.vocab_size, teacher.stored.hidden_size), np.float32)
    counts = np.zeros(config.vocab_size, np.float32)
    tokens = _RUN if data.outputs is None else _CACHED
    for batch, hidden in _outputs(teacher, data, tokens, run, 1):
        real = batch.document > 0
        ids, states = batch.tokens[real], np.asarray(hidden)[real].astype(np.float32)
        order = np.argsort(ids, kind="stable")
        token, start, count = np.unique(ids[order], return_index=True, return_counts=True)
        sums[token] += np.add.reduceat(states[order], start, axis=0)
        counts[token] += count
    mean = sums.sum(axis=0) / counts.sum()
    return (sums + _RARE * mean) / (counts[:, None] + _RARE), counts


def nearest_factors(
    means: np.ndarray, counts: np.ndarray, head: np.ndarray, rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Factors [V, r] and [Vd, r] of the logits after each token, float32, of rank r, or at most D:
    the nearest, where tokens count as often as they occur. Of logits only differences matter, so
    they are centred. From the hidden states after each token, [V, D], its number of occurrences,
    [V], and the head's kernel, [D, Vd]."""
    head = head - head.mean(axis=1, keepdims=True)
    energy, basis = np.linalg.eigh(head @ head.T / head.shape[1])
    root = basis * np.sqrt(np.maximum(energy, 1e-6 * energy[-1]))  # root @ root.T is the energy
    seen = counts > 0
    weighed = np.sqrt(counts[seen])[:, None] * (means[seen] @ root)
    _, directions = np.linalg.eigh(weighed.T @ weighed)
    best = directions[:, -rank:]
    prev, following = means @ (root @ best), np.linalg.solve(root, head).T @ best
    balance = np.sqrt(np.std(prev[seen]) / np.std(following))
    return (prev / balance).astype(np.float32), (following * balance).astype(np.float32)
