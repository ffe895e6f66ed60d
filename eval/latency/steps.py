"""The times of a step, its search and a plain step, with one batch and context."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.host_buffer import CONTEXT
from dart_jax.decoding.reading import caches_without_rows
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.choice import TreeSearch, make_search
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import decode_step
from dart_jax.decoding.tree import TREE_ROWS
from dart_jax.model import DartModel
from dart_jax.models.pure import dtype_of
from eval.latency.clock import Repeated, measure
from eval.latency.cost import Cost, cost

_UNLIMITED = 2**30  # token budget


class Row(NamedTuple):
    """What was timed.

    Attributes:
      stage: plain step, search or step.
      nodes: nodes of the tree, N; 0 for a plain step.
      seconds: of each repeat.
      cost: its least work on a device; None for the search.
    """

    stage: str
    nodes: int
    seconds: list[float]
    cost: Cost | None


@partial(jax.jit, static_argnames="config", donate_argnames="caches")
def _step(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: Any, caches: Any
) -> tuple[Any, jax.Array]:
    """A step that leaves the state as it is, except for the caches."""
    state = dataclasses.replace(state, target_cache=caches[0], draft_state=caches[1])
    state, _, packed = decode_step(config, params, state, trees)
    return (state.target_cache, state.draft_state), packed


def measure_steps(
    model: DartModel, batch: int, context: int, nodes: tuple[int, ...], repeats: int
) -> Iterator[Row]:
    """Measures a plain step, and for trees of each size a step and its search.

    Args:
      model: random weights in a shape.
      batch: sequences decoded together.
      context: cached tokens.
      nodes: tree sizes, N.
      repeats: measurements of each.
    """
    params, dtype = model.params, dtype_of(model.params["target"])
    for number, count in enumerate(nodes):
        config = DecodeConfig(model.target, model.drafter, count, execution=model.execution)
        state, packed = prepared_state(config, params, batch, context)
        small = dataclasses.replace(state, target_cache=(), draft_state=None)
        cache, draft_state = state.target_cache, state.draft_state
        del state
        if not number:
            step = repeated_step(config.plain, params, small, None, (cache, None))
            least = cost(config.plain, dtype, batch, context)
            yield Row("plain step", 0, measure(step, repeats), least)
            cache, _ = step.donated
            del step
        tree_search = make_search(
            config.host_buffer, count, ngram=model.ngram, eos=(), search=SearchConfig()
        )
        search = repeated_search(tree_search, packed)
        trees = search.program(*search.fixed, ())[1]
        step = repeated_step(config, params, small, trees, (cache, draft_state))
        yield Row("search", count, measure(search, repeats), None)
        least = cost(config, dtype, batch, context)
        yield Row("step", count, measure(step, repeats), least)


@partial(jax.jit, static_argnums=(0, 2, 3))
def prepared_state(
    config: DecodeConfig, params: DecodeParams, batch: int, context: int
) -> tuple[DecodeState, jax.Array]:
    """Returns the state after so many tokens, most of whose cached rows are zeros, and the host
    buffer. Times do not depend on what the rows hold."""
    caches = caches_without_rows(config.reading, params, batch, config.capacity(context))
    random, vocabulary = jax.random.key(0), config.target.vocab_size
    state = DecodeState(
        target_cache=caches.target,
        draft_state=caches.draft,
        length=jnp.full(batch, context, jnp.int32),
        context=jax.random.randint(random, (batch, CONTEXT), 0, vocabulary, jnp.int32),
        remaining=jnp.full(batch, _UNLIMITED, jnp.int32),
        stop=jnp.full(1, -1, jnp.int32),
        keys=jnp.zeros((batch, 2), jnp.uint32),
        sampling=Sampling().values(),
    )
    roots = jnp.zeros((batch, TREE_ROWS, 1), jnp.int32).at[:, 0, 0].set(state.context[:, -1])
    trees = jnp.pad(roots, ((0, 0), (0, 0), (0, config.nodes))) if config.nodes else None
    state, _, packed = decode_step(config, params, state, trees)
    return dataclasses.replace(state, length=jnp.full(batch, context, jnp.int32)), packed


def repeated_step(
    config: DecodeConfig, params: DecodeParams, small: DecodeState, trees: Any, caches: Any
) -> Repeated:
    """Compiles a step; `small` is the state without its two caches."""
    compiled = _step.lower(config, params, small, trees, caches).compile()
    return Repeated(compiled, (params, small, trees), caches)


def repeated_search(search: TreeSearch, packed: jax.Array) -> Repeated:
    """Compiles a search as the loops call it; it must outlive what is returned."""
    fixed = search, packed
    run = jax.jit(lambda search, packed, nothing: (nothing, search.in_program(packed)))
    return Repeated(run.lower(*fixed, ()).compile(), fixed)
