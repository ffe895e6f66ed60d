"""The pages of all requests, and what penalties and processors must know of their texts."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.reading import caches_without_rows
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.models.cache import Cache, KVCache, PagedCache, parts
from dart_jax.models.sharding.mesh import DATA, MODEL
from dart_jax.models.sharding.program import OnDevices, program


class Pools(NamedTuple):
    """The pages of all requests; every group of devices has pages of its own.

    Attributes:
      target: the target's keys and values, [P, K, page, h] per layer.
      draft: the drafter's; of prompt lookup the tokens, int32 [P, page]; None if the drafting
        method keeps nothing, and for programs that do not draft.
    """

    target: KVCache
    draft: Any


# Their specs (see `dart_jax.models.sharding.program`): pages are split by groups and heads.
_PAGES = P(DATA, MODEL)
_SPECS: Any = _PAGES, OnDevices(P(DATA), _PAGES)
POOLS = Pools(*_SPECS)


class History(NamedTuple):
    """What penalties, bias and processors depend on, per slot.

    Attributes:
      seen: bool [slots, V], tokens of prompt and text.
      counts: int32 [slots, V], occurrences in the text.
      bias: float32 [slots, V].
      tokens: int32 [slots, S], prompt and text, then -1; None without logits processors.
    """

    seen: jax.Array
    counts: jax.Array
    bias: jax.Array
    tokens: jax.Array | None


@program(inputs={}, outputs=POOLS, static=("config", "pages", "page"))
def empty_pools(config: DecodeConfig, params: DecodeParams, *, pages: int, page: int) -> Pools:
    """Pools of `pages` pages of `page` rows for every group of devices."""
    caches = caches_without_rows(config.reading, params, pages, page)
    return Pools(parts(caches.target)[0], caches.draft)


def empty_history(slots: int, vocab_size: int, length: int | None = None) -> History:
    """The history of free slots, with tokens up to a length if it is given."""
    shape = (slots, vocab_size)
    tokens = None if length is None else jnp.full((slots, length), -1, jnp.int32)
    return History(
        jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32), tokens
    )


@partial(jax.jit, donate_argnames=("history",))
def begin_history(history: History, slot: jax.Array, new: History) -> History:
    """Sets a slot's history, each without the axis of slots."""
    return jax.tree.map(lambda old, x: old.at[slot].set(x), history, new)


def written(pools: Pools, target: Cache, draft: Any, pages: jax.Array) -> Pools:
    """The pools after what programs wrote into caches with pages, int32 [n, m]."""
    return Pools(parts(target)[0], _draft_pool(pools.draft, draft, pages))


def drafter_state(pool: Any, pages: jax.Array) -> Any:
    """The state of the drafting method of texts with pages, int32 [n, m]."""
    if isinstance(pool, jax.Array):
        tokens = pool.at[jnp.where(pages < 0, len(pool), pages)].get(mode="fill", fill_value=0)
        return tokens.reshape(len(pages), -1)
    return None if pool is None else PagedCache(pool, pages)


def _draft_pool(pool: Any, state: Any, pages: jax.Array) -> Any:
    """The pool with a new state."""
    if isinstance(pool, jax.Array):
        tokens = state.reshape(*pages.shape, -1)
        return pool.at[jnp.where(pages < 0, len(pool), pages)].set(tokens, mode="drop")
    return None if state is None else parts(state)[0]
