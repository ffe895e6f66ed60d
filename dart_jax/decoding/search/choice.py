"""A decode step's search: C++ on the host, or JAX on the device."""

from __future__ import annotations

import logging
import weakref
from functools import cache
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.search.config import SearchConfig, SearchWay
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.errors import UserError
from dart_jax.ngram import NgramModel
from dart_jax.ngram.device_table import DeviceTable, device_table, table_bytes

# A decode step's search, of one or the other kind.
TreeSearch = HostSearch | DeviceSearch

_logger = logging.getLogger(__name__)

DEFAULT_MEMORY = 2_000_000_000


def make_search(
    host_buffer: HostBuffer,
    nodes: int,
    *,
    ngram: NgramModel | None,
    eos: tuple[int, ...],
    search: SearchConfig,
    way: SearchWay = "auto",
    memory: int = DEFAULT_MEMORY,
) -> TreeSearch:
    """Returns the search for trees of `nodes` nodes.

    Args:
      host_buffer: layout of the packed candidates. Without any, only the n-gram model drafts.
      nodes: N, the root not counted.
      ngram: the n-gram model, if any.
      eos: tokens that end a sequence.
      search: parameters.
      way: see `way_here`.
      memory: see `way_here`.

    Raises:
      UserError: as `way_here`.
    """
    if way_here(way, ngram, alone=host_buffer.candidates == 0, memory=memory) == "device":
        table = None if ngram is None else _table_on_device(ngram)
        return DeviceSearch(host_buffer, nodes, table=table, eos=eos, search=search)
    return HostSearch(host_buffer, nodes, ngram=ngram, eos=eos, search=search)


def way_here(
    way: SearchWay, ngram: NgramModel | None, *, alone: bool, memory: int = DEFAULT_MEMORY
) -> Literal["host", "device"]:
    """Returns where this platform searches.

    Args:
      way: `host`, in C++; `device`, in JAX; `auto`: on an accelerator `device` for an n-gram model
        that fits, otherwise `host`.
      ngram: the n-gram model, if any.
      alone: whether only it drafts, which needs a search on the host.
      memory: bytes that it may take on the device.

    Raises:
      UserError: there is no such way, or the device cannot search.
    """
    check_way(way, memory)
    if way == "host" or (way == "auto" and jax.default_backend() == "cpu"):
        return "host"
    needed = 0 if ngram is None else table_bytes(sum(ngram.sizes[1:]))
    if not alone and needed <= memory:
        return "device"
    why_not = "an n-gram model without a drafter is searched on the host"
    if not alone:
        why_not = (
            f"the n-gram model takes {needed / 1e6:,.0f} MB on the device, more than the "
            f"{memory / 1e6:,.0f} MB of --ngram-device-memory; `dart-jax ngram convert` makes a "
            "smaller one"
        )
    if way == "device":
        raise UserError(f"--search device cannot be: {why_not}; choose auto")
    tell(f"trees are searched by the host, which waits for the device at every step: {why_not}")
    return "host"


def check_way(way: SearchWay, memory: int) -> None:
    """Raises UserError if there is no such way, or no such memory."""
    if way not in get_args(SearchWay):
        raise UserError(f"search must be one of {', '.join(get_args(SearchWay))}, got {way!r}")
    if memory < 0:
        raise UserError(f"ngram_device_memory must be at least 0, got {memory}")


_tables: weakref.WeakKeyDictionary[NgramModel, DeviceTable] = weakref.WeakKeyDictionary()


def _table_on_device(model: NgramModel) -> DeviceTable:
    """Returns an n-gram model on the device, made once for all users of a model."""
    if model not in _tables:
        _tables[model] = jax.tree.map(jnp.asarray, device_table(model))
    return _tables[model]


@cache
def tell(message: str) -> None:
    """Warns, once for each message."""
    _logger.warning(message)
