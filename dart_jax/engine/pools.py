"""The pools: pages of keys and values, which all requests share."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.reading import caches_without_rows
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.shapes import Shapes
from dart_jax.errors import UserError
from dart_jax.memory import parse_memory
from dart_jax.models.attention.compaction import keep_rows
from dart_jax.models.cache import Cache, KVCache, PagedCache, parts
from dart_jax.models.cpu import copy_page as copy_page_natively
from dart_jax.models.cpu import unwritten
from dart_jax.models.platform.device_memory import device_memory
from dart_jax.models.sharding.mesh import DATA, MODEL
from dart_jax.models.sharding.program import ROWS, OnDevices, program

# Bytes of the pools, at most, unless it is set.
_MOST_MEMORY = {"cpu": 4 * 10**9}
_MOST_MEMORY_ELSEWHERE = 8 * 10**9


class Pools(NamedTuple):
    """Pages of all requests; every group of devices has pages of its own.

    Attributes:
      target: the target's keys and values, [P, K, page, h] per layer.
      draft: the drafter's; of prompt lookup the tokens, int32 [P, page]. None if the drafting
        method keeps nothing, and for programs that do not draft.
    """

    target: KVCache
    draft: Any


# Their specs (see `dart_jax.models.sharding.program`): pages are split by groups and heads.
_PAGES = P(DATA, MODEL)
_SPECS: Any = _PAGES, OnDevices(P(DATA), _PAGES)
POOLS = Pools(*_SPECS)


@program(inputs={}, outputs=POOLS, static=("config", "pages", "page"))
def empty_pools(config: DecodeConfig, params: DecodeParams, *, pages: int, page: int) -> Pools:
    """Pools of `pages` pages of `page` rows for every group of devices. Where the C++ core attends,
    which reads only what was written, keys and values take memory only as they are written."""
    caches = caches_without_rows(config.reading, params, pages, page)
    layers, draft = parts(caches.target)[0], caches.draft
    if config.execution.attention == "native":
        layers = unwritten(layers)
        draft = draft if isinstance(draft, jax.Array) else unwritten(draft)
    return Pools(layers, draft)


def written(pools: Pools, target: Cache, draft: Any, pages: jax.Array) -> Pools:
    """Returns the pools after what programs wrote into caches with pages, int32 [n, m]."""
    return Pools(parts(target)[0], _draft_pool(pools.draft, draft, pages))


def drafter_state(pool: Any, pages: jax.Array) -> Any:
    """Returns the state of the drafting method of texts with pages, int32 [n, m]."""
    if isinstance(pool, jax.Array):
        tokens = pool.at[jnp.where(pages < 0, len(pool), pages)].get(mode="fill", fill_value=0)
        return tokens.reshape(len(pages), -1)
    return None if pool is None else PagedCache(pool, pages)


def _draft_pool(pool: Any, state: Any, pages: jax.Array) -> Any:
    """Returns the pool with a new state."""
    if isinstance(pool, jax.Array):
        tokens = state.reshape(*pages.shape, -1)
        return pool.at[jnp.where(pages < 0, len(pool), pages)].set(tokens, mode="drop")
    return None if state is None else parts(state)[0]


@program(inputs={"pools": POOLS, "source": ROWS, "target": ROWS}, outputs=POOLS, donated=("pools",))
def copy_page(config: DecodeConfig, pools: Pools, source: jax.Array, target: jax.Array) -> Pools:
    """Copies a page in every group of devices, from `source` to `target`, both int32 [groups]: the
    same where there is nothing to copy. `pools` is donated; `config` is `DecodeConfig.reading`."""

    def copy(pool: Any) -> Any:
        if pool is None:
            return None
        if config.execution.attention == "native":
            return copy_page_natively(pool, source[0], target[0])
        pages = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, source[0], 1), pool)
        if isinstance(pool, jax.Array):
            return jax.lax.dynamic_update_slice_in_dim(pool, pages, target[0], 0)
        cache, start = PagedCache(pool, target[:, None]), jnp.zeros(1, jnp.int32)
        return keep_rows(cache, pages, start, config.execution.attention).layers

    return Pools(copy(pools.target), copy(pools.draft))


def count_pages(
    config: DecodeConfig, params: DecodeParams, options: EngineConfig, shapes: Shapes
) -> int:
    """Returns how many pages of each group of devices the memory holds; offline as many as the
    longest texts in all slots need. Raises UserError if it does not hold these, or the longest
    text."""
    wanted = shapes.slots // shapes.groups * shapes.pages_each
    least = wanted if options.offline else shapes.pages_each
    memory = device_memory()
    if options.offline and memory is None:
        return wanted
    pool = jax.eval_shape(lambda: empty_pools(config, params, pages=1, page=shapes.page))
    target, draft = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part)) // shapes.groups
        for part in pool
    )
    devices, size, count = config.execution.devices, target + draft, wanted
    # Of each device: those that share a model share its pages, too.
    own = target // devices.shards + draft // devices.drafter_shards
    if options.kv_memory is not None:
        count = parse_memory(options.kv_memory) // size
        if count < least:
            raise UserError(
                f"--kv-memory {options.kv_memory} is too little for one request of "
                f"{shapes.max_length} tokens, which takes {least * size / 1e6:,.0f} MB; raise it "
                "or lower --max-length"
            )
    elif not options.offline:
        most = _MOST_MEMORY.get(jax.default_backend(), _MOST_MEMORY_ELSEWHERE) // size
        most = most if memory is None else min(most, memory.left // own)
        count = max(min(wanted, most), least)
    if memory is not None and count * own > memory.free:
        lower = "--kv-memory or --max-length"
        if options.offline:
            lower = "--max-new-tokens or the batch"
        raise UserError(
            f"keys and values take {count * own / 1e6:,.0f} MB of a device, and "
            f"{memory.free / 1e6:,.0f} MB of it are free; lower {lower}"
        )
    return count
