"""One shape at one context length: realistic state, and the times of all stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.loop import start
from dart_jax.decoding.noise import row_keys
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.choice import make_search
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.model import DEMO
from dart_jax.models.cache import KVCache
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.models.sharding.placement import everywhere
from dart_jax.models.sharding.program import CACHE, DRAFT_ROWS, ROWS, specs_of
from dart_jax.ngram import NgramModel
from eval.latency import stages
from eval.latency.abstract_arrays import weight_bytes
from eval.latency.clock import Times, Timing, calls_in, measure, measure_host
from eval.latency.cost import Cost, CostModel
from eval.latency.devices import random_array
from eval.latency.shapes import configs, random_params

# Longer contexts are not prefilled: their rows are random numbers.
LONGEST_PREFILL = 1024
_UNLIMITED = 2**30  # token budget
_NO_STOP = (-1,) * 8
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Row:
    """A stage and its times.

    Attributes:
      stage: name of the stage.
      nodes: nodes of the tree, N; None if the stage does not depend on them.
      times: its times.
      cost: its least work on the device; None for work on the host.
    """

    stage: str
    nodes: int | None
    times: Times
    cost: Cost | None


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape at one context length.

    Attributes:
      shape: name of the shape.
      context: cached tokens.
      capacity: rows of the caches; the programs read them all and mask unused ones.
      batch: sequences decoded together.
      prefilled: whether a prompt was prefilled; otherwise the caches hold random numbers.
      ngram: whether the search had an n-gram model.
      rows: the stages, in the order of a step.
      mesh: the devices that decode together; None for one. `capacity` is that of each, `batch`
        that of all.
    """

    shape: str
    context: int
    capacity: int
    batch: int
    prefilled: bool
    ngram: bool
    rows: list[Row]
    mesh: MeshShape | None = None

    def find(self, stage: str, nodes: int | None = None) -> Row:
        """Returns the row of a stage with these nodes, otherwise its row for all nodes."""
        rows = {row.nodes: row for row in self.rows if row.stage == stage}
        return rows[nodes] if nodes in rows else rows[None]

    @property
    def nodes(self) -> list[int]:
        """The measured tree sizes."""
        return [row.nodes for row in self.rows if row.stage == "step" and row.nodes is not None]


@dataclasses.dataclass(frozen=True)
class Model:
    """A shape with random weights.

    Attributes:
      name: name of the shape.
      target: the target; on CPU its head is untied, as when a model is loaded.
      drafter: a DART drafter.
      params: the parameters, on the device, or on those of a mesh.
      ngram: n-gram model of the search; None without.
      execution: how it is computed.
    """

    name: str
    target: TargetConfig
    drafter: DrafterConfig
    params: DecodeParams
    ngram: NgramModel | None
    execution: Execution

    @classmethod
    def random(cls, name: str, dtype: Any, execution: Execution | None = None) -> Model:
        """Creates the weights on the device, or on each device of a mesh what it has of them.

        Raises:
          UserError: devices cannot share this shape.
        """
        target, drafter, execution = configs(name, execution or Execution.here())
        ids = jnp.arange(drafter.draft_vocab_size, dtype=jnp.int32)
        params: DecodeParams = {
            "target": random_params(target, 0, dtype, execution),
            "drafter": random_params(drafter, 1, dtype, execution),
            "draft_ids": ids if execution.mesh is None else everywhere(execution.mesh, ids),
        }
        ngram = NgramModel.load(DEMO / "ngram.dng") if name == "demo" else None
        return cls(name, target, drafter, jax.block_until_ready(params), ngram, execution)

    def config(self, nodes: int) -> DecodeConfig:
        """What steps with trees of `nodes` nodes are compiled for."""
        return DecodeConfig(self.target, self.drafter, nodes, execution=self.execution)

    @property
    def dtype(self) -> Any:
        """dtype of the weights."""
        return self.params["target"]["embed_tokens"].dtype


def needed_memory(
    name: str, dtype: Any, batch: int, context: int, nodes: int, execution: Execution | None = None
) -> int:
    """Returns the approximate bytes of weights, caches and the largest intermediate results, on
    each device that decodes."""
    target, drafter, execution = configs(name, execution or Execution.here())
    config = DecodeConfig(target, drafter, nodes, execution=execution)
    costs = CostModel.of(config, drafter, batch, context, jnp.dtype(dtype).itemsize)
    part, batch = costs.part, costs.batch  # of a device
    caches = batch * (context + 64) * (costs.cached_row + costs.drafter_row)
    logits = 3 * 4 * batch * (nodes + 1) * part.vocab_size
    rows = max(context, nodes + 1) if context <= LONGEST_PREFILL else nodes + 1
    # Attention scores are computed in blocks of less than a gigabyte.
    scores = min(2**30, 4 * batch * part.num_attention_heads * rows * (context + 64))
    # Random bits of the largest matrix, which every device has as a whole.
    creation = 6 * target.vocab_size * target.hidden_size
    return weight_bytes(config, dtype) + caches + max(logits + 3 * scores, creation)


def run_case(
    model: Model,
    batch: int,
    context: int,
    nodes: tuple[int, ...],
    timing: Timing,
    notify: Callable[[str], None] = lambda _: None,
    out_of_time: Callable[[], bool] = lambda: False,
    sampling: Sampling = Sampling(),
) -> Case:
    """Measures all stages for trees of each size.

    Args:
      model: the shape's model.
      batch: sequences decoded together.
      context: cached tokens.
      nodes: tree sizes, N.
      timing: how to measure.
      notify: called with the name of what is measured next.
      out_of_time: whether to skip trees after the first.
      sampling: how the target samples.
    """
    runner = _Runner(model, batch, context, max(nodes), timing, notify, sampling)
    rows = [runner.plain()]
    for count in nodes:
        if count == nodes[0] or not out_of_time():
            rows += runner.tree(count)
    prefilled, ngram, mesh = context <= LONGEST_PREFILL, model.ngram is not None, None
    if model.execution.mesh is not None:
        mesh = MeshShape(**model.execution.mesh.shape)
    return Case(model.name, context, runner.capacity, batch, prefilled, ngram, rows, mesh)


class _Runner:
    """Measures the stages of a case; holds the state that is passed from stage to stage."""

    def __init__(
        self,
        model: Model,
        batch: int,
        context: int,
        max_nodes: int,
        timing: Timing,
        notify: Any,
        sampling: Sampling,
    ):
        self.model, self.timing, self.notify = model, timing, notify
        config, size = model.config(max_nodes), jnp.dtype(model.dtype).itemsize
        self.cost = CostModel.of(config, model.drafter, batch, context, size)
        self.capacity = config.capacity(context)
        notify("state")
        make = prefilled_state if context <= LONGEST_PREFILL else random_state
        state, self.candidates = make(config, model.params, batch, context)
        small = dataclasses.replace(state, sampling=sampling.values())
        self.small = stages.without_caches(small)
        self.cache, self.draft_state = state.target_cache, state.draft_state
        self.calls = 1  # per measurement of verify, adapted to its last times
        self.paths: set[int] = set()  # path lengths for which the draft was measured

    def plain(self) -> Row:
        """Measures a step of plain decoding."""
        self.notify("plain step")
        config, params = self.model.config(0).plain, self.model.params
        stage = stages.step_stage.stage(config, params, (self.small, None), (self.cache, None))
        times, (self.cache, _), _ = measure(stage, self.timing)
        self.calls = times.calls
        return Row("plain", None, times, self.cost.plain())

    def tree(self, nodes: int) -> Iterator[Row]:
        """Measures all stages of a step with trees of one size."""
        model, timing, cost = self.model, self.timing, self.cost
        config = model.config(nodes)
        path, rows = config.max_depth + 1, nodes + 1
        context, *drafts = self.candidates
        drafts = (array[:, : config.host_buffer.positions] for array in drafts)
        packed = pack_host_buffer(config.host_buffer, context, *drafts)
        pruner = HostSearch(config.host_buffer, nodes, ngram=model.ngram)
        trees = jnp.asarray(pruner(packed))
        inputs = (self.small, trees)

        self.notify(f"{nodes} nodes: verify")
        fixed = (model.params, self.cache)
        stage = stages.verify_stage.stage(config, fixed, inputs, calls=self.calls)
        times, _, verified = measure(stage, timing)
        yield Row("verify", nodes, times, cost.verify(rows))
        del fixed, stage
        self.calls = calls_in(timing.seconds, times.seconds)

        self.notify(f"{nodes} nodes: accept")
        stage = stages.accept_stage.stage(config, (), (*inputs, verified), self.cache)
        times, self.cache, accepted = measure(stage, timing)
        yield Row("accept", nodes, times, cost.accept(rows, path))
        del stage, verified

        if path not in self.paths:
            full = path > model.drafter.num_positions  # the same for all larger trees
            yield from self._draft(config, accepted, None if full else nodes)
            self.paths.add(path)

        self.notify(f"{nodes} nodes: step")
        donated = (self.cache, self.draft_state)
        stage = stages.step_stage.stage(config, model.params, inputs, donated)
        times, (self.cache, self.draft_state), output = measure(stage, timing)
        yield Row("step", nodes, times, cost.step(rows, path))

        self.notify(f"{nodes} nodes: host copy and search")
        fresh = jax.jit(lambda x: x + 1)  # an array's copy on the host is cached
        times = measure_host(np.asarray, timing, lambda: jax.block_until_ready(fresh(output)))
        yield Row("to host", nodes, times, None)
        yield Row("search", nodes, measure_host(lambda _: pruner(packed), timing), None)
        on_host = np.asarray(trees)
        mesh = model.execution.mesh
        where = None if mesh is None else NamedSharding(mesh, ROWS)
        times = measure_host(lambda _: jax.device_put(on_host, where), timing)
        yield Row("to device", nodes, times, None)

        # As in the fused loop: all three in one call, or on the device.
        search = make_search(
            config.host_buffer, nodes, ngram=model.ngram, eos=(), search=SearchConfig()
        )
        stage = stages.search_stage.stage(config, search, jnp.asarray(packed))
        times, _, _ = measure(stage, timing)
        yield Row("inside", nodes, times, None)

    def _draft(self, config: DecodeConfig, accepted: Any, nodes: int | None) -> Iterator[Row]:
        """Measures the stages that depend only on the path length."""
        params, timing, cost = self.model.params, self.timing, self.cost
        path = config.max_depth + 1
        self.notify("draft")
        stage = stages.draft_stage.stage(config, (params, self.draft_state), accepted)
        times, _, (logits, rows) = measure(stage, timing)
        yield Row("draft", nodes, times, cost.draft(path))
        self.notify("top-k")
        stage = stages.topk_stage.stage(config, params["draft_ids"], logits)
        times, _, candidates = measure(stage, timing)
        yield Row("top-k", nodes, times, cost.topk(path))
        self.notify("pack")
        inputs = (*accepted, rows, candidates)
        stage = stages.pack_stage.stage(config, (), inputs, self.draft_state)
        times, self.draft_state, _ = measure(stage, timing)
        yield Row("pack", nodes, times, cost.pack(path))


# Context int32 [B, 4], ids int32 [B, d, k] and float32 logits [B, d, k].
Candidates = tuple[np.ndarray, np.ndarray, np.ndarray]


def prefilled_state(
    config: DecodeConfig, params: DecodeParams, batch: int, context: int
) -> tuple[DecodeState, Candidates]:
    """Returns the state and the candidates after the prefill of random prompts."""
    rng = np.random.default_rng(_SEED)
    tokens = rng.integers(0, config.target.vocab_size, (batch, context), np.int32)
    length, budget = (np.full(batch, n, np.int32) for n in (context, _UNLIMITED))
    prompts = Prompts(tokens, length, budget, context)
    state, packed = start(config, params, prompts, Options(stop=_NO_STOP, seed=_SEED))
    return state, config.prefill.host_buffer.candidates_of(np.asarray(packed))


def random_state(
    config: DecodeConfig, params: DecodeParams, batch: int, context: int
) -> tuple[DecodeState, Candidates]:
    """As `prefilled_state`, with random numbers in the caches, for contexts too long to prefill."""
    target, drafter = config.target, config.drafter
    assert isinstance(drafter, DrafterConfig)
    dtype, rng = params["target"]["embed_tokens"].dtype, np.random.default_rng(_SEED)

    mesh = config.execution.mesh
    draft_cache = specs_of(DRAFT_ROWS, config.execution.split_drafter)

    def cache(layers: int, heads: int, size: int, seed: int, spec: P) -> KVCache:
        keys = jax.random.split(jax.random.key(seed, impl="rbg"), 2 * layers)
        shape = (batch, heads, config.capacity(context), size)
        where = None if mesh is None else NamedSharding(mesh, spec)
        arrays = [random_array(key, shape, dtype, where) for key in keys]
        return tuple(zip(arrays[::2], arrays[1::2], strict=True))

    t, d = target, drafter
    last = rng.integers(0, t.vocab_size, (batch, CONTEXT), np.int32)
    state = DecodeState(
        target_cache=cache(t.num_hidden_layers, t.num_key_value_heads, t.head_dim, 0, CACHE),
        draft_state=cache(1, d.num_key_value_heads, d.head_dim, 1, draft_cache),
        length=jnp.full((batch,), context, jnp.int32),
        context=jnp.asarray(last),
        remaining=jnp.full((batch,), _UNLIMITED, jnp.int32),
        stop=jnp.asarray(_NO_STOP, jnp.int32),
        keys=row_keys(jnp.uint32(_SEED), jnp.arange(batch, dtype=jnp.int32)),
        sampling=Sampling().values(),
    )
    shape = (batch, config.host_buffer.positions, config.host_buffer.candidates)
    ids = rng.random((*shape[:2], d.draft_vocab_size)).argpartition(shape[2] - 1)[..., : shape[2]]
    logits = -np.sort(-rng.standard_normal(shape).astype(np.float32))
    return state, (last, ids.astype(np.int32), logits)


def pack_host_buffer(
    host_buffer: HostBuffer, context: np.ndarray, ids: np.ndarray, logits: np.ndarray
) -> np.ndarray:
    """Returns the host buffer of a step with these candidates, int32 [B, width]."""
    rows = len(context)
    emitted = np.zeros((rows, 1 + 2 * host_buffer.path), np.int32)
    bits = np.ascontiguousarray(logits, np.float32).view(np.int32).reshape(rows, -1)
    return np.concatenate([emitted, context, ids.reshape(rows, -1), bits], axis=1)
