"""One shape at one context: state like a real one, and the times of all stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.pruner import Pruner
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import prefill
from dart_jax.model import DEMO
from dart_jax.models.cache import KVCache
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.ngram import NgramModel
from eval.latency import stages
from eval.latency.clock import Measured, Stage, Timing, calls_in, measure, measure_host
from eval.latency.cost import Cost, Counted
from eval.latency.shapes import drafter_of, parameters, random_params, target_of

# Longer prompts are not read: their rows are random numbers.
LONGEST_PREFILL = 1024
_ENDLESS = 2**30  # tokens still to be emitted
_NO_STOP = (-1,) * 8
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Row:
    """A stage and its times.

    Attributes:
      stage: its name.
      nodes: of the tree, N; None where it does not depend on them.
      measured: the times.
      cost: what it must move and compute on the device; None for the host's work.
    """

    stage: str
    nodes: int | None
    measured: Measured
    cost: Cost | None


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape at one context.

    Attributes:
      shape: its name.
      context: tokens known.
      capacity: rows of the caches; the programs read them all, and mask what is not known.
      batch: rows decoded together.
      prefilled: whether a prompt was read; else the caches hold random numbers.
      ngram: whether the search had an n-gram model.
      rows: in the order of a step.
    """

    shape: str
    context: int
    capacity: int
    batch: int
    prefilled: bool
    ngram: bool
    rows: list[Row]

    def find(self, stage: str, nodes: int | None = None) -> Row:
        """The row of a stage with these nodes; else the one that does not depend on them."""
        rows = {row.nodes: row for row in self.rows if row.stage == stage}
        return rows[nodes] if nodes in rows else rows[None]

    @property
    def nodes(self) -> list[int]:
        """The trees measured."""
        return [row.nodes for row in self.rows if row.stage == "step" and row.nodes is not None]


@dataclasses.dataclass(frozen=True)
class Model:
    """A shape with random weights.

    Attributes:
      name: of the shape.
      target: on CPU with a head of its own, as a model that is loaded gets one.
      drafter: a DART drafter.
      params: on the device.
      ngram: for the search; None without.
    """

    name: str
    target: TargetConfig
    drafter: DrafterConfig
    params: DecodeParams
    ngram: NgramModel | None

    @classmethod
    def random(cls, name: str, dtype: Any) -> Model:
        """Makes the weights on the device."""
        target, drafter = configs(name)
        params: DecodeParams = {
            "target": random_params(target, 0, dtype),
            "drafter": random_params(drafter, 1, dtype),
            "draft_ids": jnp.arange(drafter.draft_vocab_size, dtype=jnp.int32),
        }
        ngram = NgramModel.load(DEMO / "ngram.dng") if name == "demo" else None
        return cls(name, target, drafter, jax.block_until_ready(params), ngram)

    @property
    def dtype(self) -> Any:
        """Of the weights."""
        return self.params["target"]["embed_tokens"].dtype


def configs(name: str) -> tuple[TargetConfig, DrafterConfig]:
    """What a shape runs as on this device."""
    target = target_of(name)
    drafter = drafter_of(target)
    if jax.default_backend() == "cpu":
        target = dataclasses.replace(target, tie_word_embeddings=False)
    return target, drafter


def needed_memory(name: str, dtype: Any, batch: int, context: int, nodes: int) -> int:
    """Bytes of weights, caches and the largest intermediate results, about."""
    target, drafter = configs(name)
    size = jnp.dtype(dtype).itemsize
    counted = Counted(target, drafter, batch, context, size, 1)
    weights = size * (parameters(target) + parameters(drafter))
    caches = batch * (context + 64) * (counted.cached_row + counted.drafter_row)
    logits = 3 * 4 * batch * (nodes + 1) * target.vocab_size
    rows = max(context, nodes + 1) if context <= LONGEST_PREFILL else nodes + 1
    # Scores of attention are taken some at a time, below a gigabyte.
    scores = min(2**30, 4 * batch * target.num_attention_heads * rows * (context + 64))
    making = 6 * target.vocab_size * target.hidden_size  # random bits of the largest matrix
    return weights + caches + max(logits + 3 * scores, making)


def run_case(
    model: Model,
    batch: int,
    context: int,
    nodes: tuple[int, ...],
    timing: Timing,
    say: Callable[[str], None] = lambda _: None,
    late: Callable[[], bool] = lambda: False,
) -> Case:
    """Measures all stages for trees of each size.

    Args:
      model: the shape.
      batch: rows decoded together.
      context: tokens known.
      nodes: sizes of trees, N.
      timing: how.
      say: is told what is measured next.
      late: whether to leave the trees behind the first out.
    """
    work = _Work(model, batch, context, max(nodes), timing, say)
    rows = [work.plain()]
    for count in nodes:
        if count == nodes[0] or not late():
            rows += work.tree(count)
    read, ngram = context <= LONGEST_PREFILL, model.ngram is not None
    return Case(model.name, context, work.capacity, batch, read, ngram, rows)


class _Work:
    """The state of a case, which goes from stage to stage."""

    def __init__(self, model: Model, batch: int, context: int, most: int, timing: Timing, say: Any):
        self.model, self.timing, self.say = model, timing, say
        config = DecodeConfig(model.target, model.drafter, most)
        size = jnp.dtype(model.dtype).itemsize
        candidates = config.host_buffer.candidates
        self.cost = Counted(model.target, model.drafter, batch, context, size, candidates)
        self.capacity = config.capacity(context)
        say("state")
        make = prefilled if context <= LONGEST_PREFILL else random_state
        state, self.candidates = make(config, model.params, batch, context, self.capacity)
        self.small = stages.without_caches(state)
        self.cache, self.memory = state.target_cache, state.memory
        self.calls = 1  # of a figure of the target's part: as many as its last times suggest
        self.paths: set[int] = set()  # lengths for which the draft is measured

    def plain(self) -> Row:
        """A step of plain decoding."""
        self.say("plain step")
        config = DecodeConfig(self.model.target)
        function = partial(stages.step_stage, config)
        stage = Stage(function, self.model.params, (self.small, None), (self.cache, None))
        measured, (self.cache, _), _ = measure(stage, self.timing)
        self.calls = measured.calls
        return Row("plain", None, measured, self.cost.plain())

    def tree(self, nodes: int) -> Iterator[Row]:
        """All stages of a step with trees of one size."""
        model, timing, cost = self.model, self.timing, self.cost
        config = DecodeConfig(model.target, model.drafter, nodes)
        path, rows = config.max_depth + 1, nodes + 1
        context, *drafts = self.candidates
        drafts = (array[:, : config.host_buffer.positions] for array in drafts)
        packed = hand_over(config.host_buffer, context, *drafts)
        pruner = Pruner(config.host_buffer, nodes, ngram=model.ngram)
        trees = jnp.asarray(pruner(packed))
        given = (self.small, trees)

        self.say(f"{nodes} nodes: verify")
        fixed = (model.params, self.cache)
        function = partial(stages.verify_stage, config)
        measured, _, verified = measure(Stage(function, fixed, given, calls=self.calls), timing)
        yield Row("verify", nodes, measured, cost.verify(rows))
        del fixed
        self.calls = calls_in(timing.seconds, measured.seconds)

        self.say(f"{nodes} nodes: accept")
        function = partial(stages.accept_stage, config)
        stage = Stage(function, (), (*given, verified), self.cache)
        measured, self.cache, won = measure(stage, timing)
        yield Row("accept", nodes, measured, cost.accept(rows, path))
        del stage, verified

        if path not in self.paths:
            whole = path > model.drafter.num_positions  # as of all larger trees
            yield from self._draft(config, won, None if whole else nodes)
            self.paths.add(path)

        self.say(f"{nodes} nodes: step")
        function = partial(stages.step_stage, config)
        moved = (self.cache, self.memory)
        stage = Stage(function, model.params, given, moved)
        measured, (self.cache, self.memory), last = measure(stage, timing)
        yield Row("step", nodes, measured, cost.step(rows, path))

        self.say(f"{nodes} nodes: hand-over and search")
        fresh = jax.jit(lambda x: x + 1)  # an array is copied to the host but once
        measured = measure_host(np.asarray, timing, lambda: jax.block_until_ready(fresh(last)))
        yield Row("to host", nodes, measured, None)
        yield Row("search", nodes, measure_host(lambda _: pruner(packed), timing), None)
        sent = np.asarray(trees)
        yield Row("to device", nodes, measure_host(lambda _: jax.device_put(sent), timing), None)

        # All three in one, as the fused loop has it.
        inside = partial(stages.search_stage, config, pruner.native)
        stage = Stage(inside, jnp.int32(pruner.handle), jnp.asarray(packed))
        measured, _, _ = measure(stage, timing)
        yield Row("inside", nodes, measured, None)

    def _draft(self, config: DecodeConfig, won: Any, nodes: int | None) -> Iterator[Row]:
        """The stages that depend on the path's length alone."""
        params, timing, cost = self.model.params, self.timing, self.cost
        path = config.max_depth + 1
        self.say("draft")
        stage = Stage(partial(stages.draft_stage, config), (params, self.memory), won)
        measured, _, (logits, rows) = measure(stage, timing)
        yield Row("draft", nodes, measured, cost.draft(path))
        self.say("top-k")
        stage = Stage(partial(stages.topk_stage, config), params["draft_ids"], logits)
        measured, _, candidates = measure(stage, timing)
        yield Row("top-k", nodes, measured, cost.topk(path))
        self.say("pack")
        given = (*won, rows, candidates)
        stage = Stage(partial(stages.pack_stage, config), (), given, self.memory)
        measured, self.memory, _ = measure(stage, timing)
        yield Row("pack", nodes, measured, cost.pack(path))


# Context int32 [B, 4], ids int32 [B, d, k] and float32 logits [B, d, k].
Candidates = tuple[np.ndarray, np.ndarray, np.ndarray]


def prefilled(
    config: DecodeConfig, params: DecodeParams, batch: int, context: int, capacity: int
) -> tuple[DecodeState, Candidates]:
    """What the prefill of random prompts leaves, and the candidates it hands over."""
    rng = np.random.default_rng(_SEED)
    tokens = rng.integers(0, config.target.vocab_size, (batch, context), np.int32)
    state, packed = prefill(
        config.prefill,
        params,
        jnp.asarray(tokens),
        jnp.full((batch,), context, jnp.int32),
        jnp.full((batch,), _ENDLESS, jnp.int32),
        jnp.asarray(_NO_STOP, jnp.int32),
        jnp.uint32(_SEED),
        Sampling().values(),
        capacity=capacity,
    )
    return state, config.prefill.host_buffer.candidates_of(np.asarray(packed))


def random_state(
    config: DecodeConfig, params: DecodeParams, batch: int, context: int, capacity: int
) -> tuple[DecodeState, Candidates]:
    """The same with random numbers in the caches, for contexts that take long to read."""
    target, drafter = config.target, config.drafter
    assert isinstance(drafter, DrafterConfig)
    dtype, rng = params["target"]["embed_tokens"].dtype, np.random.default_rng(_SEED)

    def cache(layers: int, heads: int, size: int, seed: int) -> KVCache:
        keys = jax.random.split(jax.random.key(seed, impl="rbg"), 2 * layers)
        shape = (batch, heads, capacity, size)
        made = [_random_rows(key, shape, dtype) for key in keys]
        return tuple(zip(made[::2], made[1::2], strict=True))

    t, d = target, drafter
    last = rng.integers(0, t.vocab_size, (batch, CONTEXT), np.int32)
    state = DecodeState(
        target_cache=cache(t.num_hidden_layers, t.num_key_value_heads, t.head_dim, 0),
        memory=cache(1, d.num_key_value_heads, d.head_dim, 1),
        length=jnp.full((batch,), context, jnp.int32),
        context=jnp.asarray(last),
        remaining=jnp.full((batch,), _ENDLESS, jnp.int32),
        stop=jnp.asarray(_NO_STOP, jnp.int32),
        seed=jnp.uint32(_SEED),
        sampling=Sampling().values(),
    )
    shape = (batch, config.host_buffer.positions, config.host_buffer.candidates)
    ids = rng.random((*shape[:2], d.draft_vocab_size)).argpartition(shape[2] - 1)[..., : shape[2]]
    logits = -np.sort(-rng.standard_normal(shape).astype(np.float32))
    return state, (last, ids.astype(np.int32), logits)


@partial(jax.jit, static_argnames=("shape", "dtype"))
def _random_rows(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jax.random.normal(key, shape, dtype)


def hand_over(
    host_buffer: HostBuffer, context: np.ndarray, ids: np.ndarray, logits: np.ndarray
) -> np.ndarray:
    """What a step with these candidates hands to the host, int32 [B, width]."""
    rows = len(context)
    won = np.zeros((rows, 2 + host_buffer.path), np.int32)
    bits = np.ascontiguousarray(logits, np.float32).view(np.int32).reshape(rows, -1)
    return np.concatenate([won, context, ids.reshape(rows, -1), bits], axis=1)
