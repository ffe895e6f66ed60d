"""The programs of decoding in the shape of a published model, with abstract arguments: nothing is
allocated."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from dart_jax.decoding.loop import padded_stop, run
from dart_jax.decoding.prefill import CACHES, ChunkShape, empty_caches, prefill
from dart_jax.decoding.prompts import CHUNK
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import STATE, DecodeConfig
from dart_jax.decoding.step import step
from dart_jax.engine.programs import (
    POOLS,
    BurstProgram,
    burst,
    config_of,
    empty_history,
    empty_pools,
)
from dart_jax.engine.rows import PAGES, VALUES, Rows
from dart_jax.models.drafter_config import DraftLayerConfig, Eagle3Config
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.int8 import round_params
from dart_jax.models.pure import abstract_params
from dart_jax.models.sharding.program import ALL, ROWS, param_specs, specs_of
from dart_jax.ngram.device_table import DeviceTable
from dart_jax.serving.config import ServingConfig
from eval.latency.shapes import as_loaded, drafter_of, target_of

Method = Literal["plain", "dart", "eagle3"]
Program = Literal["prefill", "step", "search", "loop", "serve"]
# How tokens are drawn: greedily; by temperature, top-k, top-p and min-p; or also with a bias of
# logits and the penalties for what the text has. The programs depend on nothing else.
Level = Literal["greedy", "filtered", "full"]

# N-grams of two and three tokens in the table of a search on the device: the demo model's.
_NGRAMS = 1_700_000

# Steps of a burst of the serving engine.
_BURST = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """One method in one setting.

    Attributes:
      shape: name of the target's shape.
      method: how to draft.
      nodes: tree nodes without the root.
      batch: sequences decoded together.
      context: cached tokens of each.
      prompt: tokens of the prefill; of a long prompt, its last chunk is compiled.
      dtype: of weights and caches.
      level: how tokens are drawn.
      layers: layers of the target; None for the shape's own.
      execution: how the models are computed, and the mesh of several devices.
      search: where trees are searched.
    """

    shape: str
    method: Method
    nodes: int
    batch: int
    context: int
    prompt: int
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    level: Level = "greedy"
    layers: int | None = None
    execution: Execution = Execution()
    search: Literal["device", "native"] = "device"

    @functools.cached_property
    def config(self) -> DecodeConfig:
        """The decoding that the programs are compiled for."""
        target = target_of(self.shape)
        if self.layers is not None:
            target = dataclasses.replace(target, num_hidden_layers=self.layers)
        eagle = Eagle3Config.for_target(target) if self.method == "eagle3" else None
        target, drafter, execution = as_loaded(target, eagle or drafter_of(target), self.execution)
        if self.method == "plain":
            return DecodeConfig(target, execution=execution)
        return DecodeConfig(target, drafter, self.nodes, execution=execution)

    @property
    def rows(self) -> int:
        """Sequences of each group of devices."""
        return self.batch // self.execution.groups

    def on(self, mesh: Any) -> Case:
        """The same on a mesh of devices; None for one device."""
        return dataclasses.replace(self, execution=dataclasses.replace(self.execution, mesh=mesh))

    @functools.cached_property
    def params(self) -> dict[str, Any]:
        """The parameters' shapes."""
        return abstract_weights(self.config, self.dtype)

    @functools.cached_property
    def state(self) -> tuple[Any, Any]:
        """The shapes of the state and of the host buffer before a step."""
        begin = partial(prefill, self.config.prefill, capacity=self.config.capacity(self.context))
        # The prompt's length does not matter.
        state, packed = jax.eval_shape(begin, self.params, *_prompts(self, 1))
        if self.level != "full":
            return state, packed
        number, each = (
            jax.ShapeDtypeStruct((), jnp.float32),
            (self.batch, self.config.target.vocab_size),
        )
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        state = dataclasses.replace(
            state,
            sampling=state.sampling._replace(**dict.fromkeys(names, number)),
            seen=jax.ShapeDtypeStruct(each, jnp.bool_),
            counts=_ints(*each),
            bias=jax.ShapeDtypeStruct(each, jnp.float32),
        )
        return state, packed


def abstract_weights(config: DecodeConfig, dtype: Any) -> dict[str, Any]:
    """The shapes of the models' parameters as they are decoded with (see `DecodeParams`)."""

    def weights(model: Any) -> Any:
        stored = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)),
            abstract_params(model, config.execution.fused),
        )
        return jax.eval_shape(round_params, stored) if config.execution.rounded else stored

    params = {"target": weights(config.target)}
    drafter = config.drafter
    if isinstance(drafter, DraftLayerConfig):
        params |= {"drafter": weights(drafter), "draft_ids": _ints(drafter.draft_vocab_size)}
    return params


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _on_devices(where: Any, tree: Any, specs: Any = ALL, *, split_drafter: bool = False) -> Any:
    """Places shapes on a device, or in parts on a mesh; `specs` may be a tree's beginning."""

    def place(spec: P, part: Any) -> Any:
        on_mesh = isinstance(where, Mesh)
        sharding = NamedSharding(where, spec) if on_mesh else SingleDeviceSharding(where)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
        )

    return jax.tree.map(
        place, specs_of(specs, split_drafter), tree, is_leaf=lambda x: isinstance(x, P)
    )


def lower(case: Case, program: Program, device: Any) -> jax.stages.Lowered:
    """Lowers a case's program for a device; it is ignored if the case has a mesh, over which all
    but the search are spread."""
    config = case.config
    on = partial(
        _on_devices, case.execution.mesh or device, split_drafter=config.execution.split_drafter
    )
    params = on(case.params, param_specs(config, case.params))
    if program == "prefill":
        return _prefill(case, on, params)
    if program == "serve":
        return _serve(case, on, params)
    state, packed = on(case.state, (STATE, ROWS))
    if program == "step":
        trees = on(_ints(case.batch, 3, case.nodes + 1), ROWS) if config.searches else None
        return step.lower(config, params, state, trees)
    search = on(_search(case, config.host_buffer)) if config.searches else None
    if program == "search":
        assert search is not None
        return jax.jit(type(search).in_program).lower(search, packed)
    return run.lower(config, search, case.context, params, state, packed)


def _prefill(case: Case, on: Any, params: Any) -> jax.stages.Lowered:
    config, capacity = case.config, case.config.capacity(case.context)
    prompts = on(_prompts(case, case.prompt), (ROWS, ROWS, ROWS, ALL, ALL, ALL))
    caches, shape = None, None
    if case.prompt > CHUNK:
        empty = partial(empty_caches, batch=case.batch, capacity=capacity)
        caches = on(jax.eval_shape(partial(empty, config.reading), params), CACHES)
        shape = ChunkShape(CHUNK, capacity)
    return prefill.lower(config.prefill, params, *prompts, caches, capacity=capacity, shape=shape)


def _prompts(case: Case, length: int) -> tuple[Any, ...]:
    batch, seed = case.batch, jax.ShapeDtypeStruct((), jnp.uint32)
    stop = _ints(len(padded_stop((0,))))
    sampling = Sampling() if case.level == "greedy" else Sampling(0.8, 50, 0.9, 0.05)
    return _ints(batch, length), _ints(batch), _ints(batch), stop, seed, sampling.values()


def _serve(case: Case, on: Any, params: Any) -> jax.stages.Lowered:
    """Lowers a burst of the serving engine's steps, with caches in pages."""
    page, nodes = ServingConfig().page, case.nodes
    pages = -(-case.context // page)
    program = BurstProgram(config_of(case.config, nodes, case.level), case.level, _BURST)
    config = program.config
    search = on(_search(case, config.host_buffer)) if config.searches else None
    numbers: Any = _ints(case.batch, PAGES + pages)
    values: Any = jax.ShapeDtypeStruct((case.batch, VALUES), jnp.float32)
    trees = _ints(case.batch, 3, nodes + 1) if nodes else None
    empty = partial(empty_pools, case.config, pages=case.batch * pages, page=page)
    pools, history = on(jax.eval_shape(empty, case.params), POOLS), None
    if case.level == "full":
        vocabulary = case.config.target.vocab_size
        history = on(jax.eval_shape(partial(empty_history, case.batch, vocabulary)))
    rows = on(Rows(numbers, values))
    limit, until_one_ends = _ints(), jax.ShapeDtypeStruct((), jnp.bool_)
    return burst.lower(
        program, params, pools, history, rows, on(trees), search, on(limit), on(until_one_ends)
    )


def _search(case: Case, host_buffer: HostBuffer) -> TreeSearch:
    """The tree search, with abstract arrays."""
    if case.search != "device":
        search = HostSearch(host_buffer, case.nodes, native=True)
        return jax.tree.map(lambda _: _ints(), search)
    places = _NGRAMS + _NGRAMS // 9 + 1
    table = DeviceTable(
        sections=_ints(2, 4),
        seeds=jax.ShapeDtypeStruct((_NGRAMS // 4 + 1,), jnp.uint16),
        prints=jax.ShapeDtypeStruct((places,), jnp.uint8),
        entries=_ints(places, 3),
        vocab_size=_ints(),
    )
    eos = (case.config.target.vocab_size - 1,)
    return DeviceSearch(host_buffer, case.nodes, table=table, eos=eos)
