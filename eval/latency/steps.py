"""Times of a step, its search and a plain step, with one batch and context; the device's limits."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.host_buffer import CONTEXT
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.reading import caches_without_rows
from dart_jax.decoding.search.choice import make_search
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import decode_step
from dart_jax.decoding.tree import TREE_ROWS
from dart_jax.model import DartModel
from dart_jax.models.networks.pure import dtype_of
from eval.latency.shapes import Cost, cost

_UNLIMITED = 2**30  # token budget
_SECONDS, _MOST_CALLS = 0.1, 256  # of a measurement
# Of limits: repeats, calls of each, and sizes of products up to one that takes long enough.
_RUNS, _CALLS, _SIZES, _ENOUGH = 5, 4, (512, 1024, 2048, 4096, 8192), 0.05


class Row(NamedTuple):
    """What was timed: plain step, search or step; the tree's nodes; the seconds of each repeat; and
    its least work on a device, None for the search."""

    stage: str
    nodes: int
    seconds: list[float]
    cost: Cost | None


@dataclasses.dataclass
class Repeated:
    """A compiled program that is called again and again: a function of `fixed` and `donated`
    arrays, such as caches, that returns the latter anew, updated in place, and a result."""

    program: jax.stages.Compiled
    fixed: tuple[Any, ...]
    donated: Any = ()

    def __call__(self, calls: int) -> float:
        """Makes `calls` calls in a row; returns the seconds of one."""
        result, began = None, time.perf_counter()
        for _ in range(calls):
            self.donated, result = self.program(*self.fixed, self.donated)
        jax.block_until_ready(result)
        return (time.perf_counter() - began) / calls

    def measure(self, repeats: int) -> list[float]:
        """Times calls in a row, a tenth of a second of them, dispatched one by one, of which only
        the last is waited for; returns the seconds of a call by repeat."""
        self(1)  # warm-up
        calls = min(max(round(_SECONDS / min(self(1), self(1))), 2), _MOST_CALLS)
        return [self(calls) for _ in range(repeats)]


def measure_steps(
    model: DartModel, batch: int, context: int, nodes: tuple[int, ...], repeats: int
) -> Iterator[Row]:
    """Measures, after `context` cached tokens, a plain step, and for trees of each size a step and
    its search."""
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
            yield Row("plain step", 0, step.measure(repeats), least)
            cache, _ = step.donated
            del step
        # Compiled as the loops call it.
        fixed = make_search(
            config.host_buffer, count, ngram=model.ngram, eos=(), search=SearchConfig()
        ), packed  # fmt: skip
        run = jax.jit(lambda search, packed, nothing: (nothing, search.in_program(packed)))
        search = Repeated(run.lower(*fixed, ()).compile(), fixed)
        trees = search.program(*search.fixed, ())[1]
        step = repeated_step(config, params, small, trees, (cache, draft_state))
        yield Row("search", count, search.measure(repeats), None)
        least = cost(config, dtype, batch, context)
        yield Row("step", count, step.measure(repeats), least)


@partial(jax.jit, static_argnums=(0, 2, 3))
def prepared_state(
    config: DecodeConfig, params: DecodeParams, batch: int, context: int
) -> tuple[DecodeState, jax.Array]:
    """Returns the state after `context` tokens, most of whose cached rows are zeros, and the host
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


@partial(jax.jit, static_argnames="config", donate_argnames="caches")
def _step(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: Any, caches: Any
) -> tuple[Any, jax.Array]:
    """Returns a step that leaves the state as it is, except for the caches."""
    state = dataclasses.replace(state, target_cache=caches[0], draft_state=caches[1])
    state, _, packed = decode_step(config, params, state, trees)
    return (state.target_cache, state.draft_state), packed


def repeated_step(
    config: DecodeConfig, params: DecodeParams, small: DecodeState, trees: Any, caches: Any
) -> Repeated:
    """Compiles a step; `small` is the state without its two caches."""
    compiled = _step.lower(config, params, small, trees, caches).compile()
    return Repeated(compiled, (params, small, trees), caches)


class Hardware(NamedTuple):
    """Limits of a device: bytes per second, read and written, of a large copy, the fastest of
    several, as the device may be shared; operations per second of a large matrix product, two per
    multiply-add; and bytes available for arrays, on a CPU the free memory."""

    bandwidth: float
    rate: float
    memory: int


def limits(dtype: Any) -> Hardware:
    """Measures the first device, with products of this dtype, exact in float32 as in the step."""
    stats = jax.local_devices()[0].memory_stats() or {}
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    memory = int(stats.get("bytes_limit", free))
    size = 2**28 if jax.default_backend() == "cpu" else 2**30  # more than any cache holds
    array = jnp.zeros((min(size, memory // 16) // 4,), jnp.float32)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)  # in place, which maps no new memory

    def copy() -> jax.Array:
        nonlocal array
        array = add(array)
        return array

    bandwidth, rate = 2 * array.nbytes / _fastest(copy), 0.0
    product = jax.jit(partial(jnp.matmul, precision="highest"))
    for size in _SIZES:
        x = jnp.ones((size, size), dtype)
        seconds = _fastest(lambda x=x: product(x, x))
        rate = max(rate, 2 * size**3 / seconds)
        if seconds > _ENOUGH:
            break
    return Hardware(bandwidth, rate, memory)


def _fastest(work: Callable[[], jax.Array]) -> float:
    """Returns the seconds of one of several works in a row, in the fastest run; a first one, which
    compiles, is not measured."""
    times = []
    for _ in range(_RUNS + 1):
        start = time.perf_counter()
        jax.block_until_ready([work() for _ in range(_CALLS)][-1:])
        times.append((time.perf_counter() - start) / _CALLS)
    return min(times[1:])
