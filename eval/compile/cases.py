"""The programs of decoding in the shape of a published model, with abstract arguments: nothing is
allocated."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.loop import padded_stop, run
from dart_jax.decoding.prefill import CACHES, ChunkShape, empty_caches, prefill
from dart_jax.decoding.prompts import CHUNK
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.base import SearchInProgram, SearchWay
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.device import DeviceSearchProgram
from dart_jax.decoding.search.pruner import HostSearch
from dart_jax.decoding.state import STATE, DecodeConfig
from dart_jax.decoding.step import step
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.program import ALL, ROWS, param_specs
from dart_jax.ngram.device_table import DeviceTable
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.programs import Pools, StepProgram, empty_pools
from dart_jax.serving.programs import step as serving_step
from dart_jax.serving.rows import PAGES, VALUES, Rows
from eval.compile.hlo import Array
from eval.latency.cost import Cost, CostModel
from eval.latency.devices import abstract_weights, own_bytes, own_shape, weight_bytes
from eval.latency.devices import on as on_devices
from eval.latency.shapes import as_loaded, drafter_of, target_of

_XLA_NAMES = {"bfloat16": "bf16", "float32": "f32"}

Method = Literal["plain", "dart", "eagle3"]
Program = Literal["prefill", "step", "search", "loop", "serve"]

_PAGE = ServingConfig().page


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
      sampling: how tokens are drawn.
      layers: layers of the target; None for the shape's own.
      execution: how the models are computed, and the mesh of several devices.
      search: where trees are searched.
      ngrams: n-grams of two and three tokens in the table of a search on the device.
    """

    shape: str
    method: Method
    nodes: int
    batch: int
    context: int
    prompt: int
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    sampling: Sampling = Sampling()
    layers: int | None = None
    execution: Execution = Execution()
    search: SearchWay = "native"
    ngrams: int = 1_700_000

    @functools.cached_property
    def config(self) -> DecodeConfig:
        """What the programs are compiled for."""
        target = target_of(self.shape)
        if self.layers is not None:
            target = dataclasses.replace(target, num_hidden_layers=self.layers)
        eagle = Eagle3Config.for_target(target) if self.method == "eagle3" else None
        drafter = eagle or drafter_of(target)
        target, drafter, execution = as_loaded(target, drafter, self.execution)
        if self.method == "plain":
            return DecodeConfig(target, execution=execution)
        return DecodeConfig(target, drafter, self.nodes, execution=execution)

    @property
    def whole(self) -> Case:
        """The same with all layers of the shape."""
        return dataclasses.replace(self, layers=None)

    def on(self, mesh: Any) -> Case:
        """The same on a mesh of devices, or on an abstract one, for shapes; None for one device."""
        return dataclasses.replace(self, execution=dataclasses.replace(self.execution, mesh=mesh))

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.execution.groups * self.execution.shards

    @property
    def capacity(self) -> int:
        """Rows of the caches."""
        return self.config.capacity(self.context)

    def lower(self, program: Program, device: Any) -> jax.stages.Lowered:
        """Lowers one of the programs for a device; it is ignored if there is a mesh, on which
        prefill, step and loop are spread."""
        config = self.config
        mesh = self.execution.mesh
        split = config.execution.split_drafter
        on = partial(on_devices, mesh or device, split_drafter=split)
        params = on(self._params(), self._param_specs)
        if program == "prefill":
            prompts = on(self._prompts(self.prompt), (ROWS, ROWS, ROWS, ALL, ALL, ALL))
            caches, shape = None, None
            if self.prompt > CHUNK:
                empty = partial(empty_caches, batch=self.batch, capacity=self.capacity)
                caches = on(jax.eval_shape(partial(empty, config.reading), params), CACHES)
                shape = ChunkShape(CHUNK, self.capacity)
            return prefill.lower(
                config.prefill, params, *prompts, caches, capacity=self.capacity, shape=shape
            )
        if program == "serve":
            return self._lower_serving(on, params)
        state, packed = on(self._prefilled, (STATE, ROWS))
        if program == "step":
            trees = _ints(self.batch, 3, self.nodes + 1)
            trees = on(trees, ROWS) if config.searches else None
            return step.lower(config, params, state, trees)
        search, argument = None, None
        if config.searches:
            search, argument = self._search_of(config.host_buffer)
        if program == "search":
            assert search is not None
            return jax.jit(search).lower(on(argument), packed)
        return run.lower(config, search, self.context, params, state, packed, on(argument))

    def _lower_serving(self, on: Any, params: Any) -> jax.stages.Lowered:
        """Lowers the serving engine's step, with caches in pages, and the search if it is on the
        device."""
        nodes = 0 if self.method == "plain" else self.nodes
        level = "greedy" if self.sampling.temperature == 0 else "filtered"
        program = StepProgram(self.config, nodes, nodes, level)
        argument = None
        if self.config.searches and self.search == "device":
            search, argument = self._search_of(program.host_buffer)
            program = dataclasses.replace(program, search=search)
        numbers: Any = _ints(self.batch, PAGES + self._pages_each)
        values: Any = jax.ShapeDtypeStruct((self.batch, VALUES), jnp.float32)
        rows = Rows(numbers, values)
        trees = _ints(self.batch, 3, nodes + 1) if nodes else None
        pools, argument = on(self._pools), on(argument)
        return serving_step.lower(program, params, pools, None, on(rows), on(trees), argument)

    @property
    def _pages_each(self) -> int:
        return -(-self.context // _PAGE)

    @functools.cached_property
    def _pools(self) -> Pools:
        """The shapes of pools that hold the contexts of all sequences."""
        make = partial(empty_pools, self.config, pages=self.batch * self._pages_each, page=_PAGE)
        return jax.eval_shape(make, self._params())

    def _search_of(self, host_buffer: HostBuffer) -> tuple[SearchInProgram, Any]:
        """The tree search as a part of programs, and its argument."""
        if self.search != "device":
            return HostSearch(host_buffer, self.nodes, self.search == "native"), _ints()
        eos = (self.config.target.vocab_size - 1,)
        search = DeviceSearchProgram(host_buffer, self.nodes, eos, SearchConfig())
        return search, _table(self.ngrams)

    @functools.cached_property
    def caches(self) -> frozenset[Array]:
        """The shapes of the arrays that hold rows of all cached tokens, on one device."""
        arrays = self._cached
        if self.execution.mesh is None:
            arrays = [*arrays, *jax.tree.leaves(self._pools)]
        return frozenset(
            Array(_XLA_NAMES[x.dtype.name], own_shape(x))
            for x in arrays
            if x.ndim > 2 and {self.capacity, _PAGE} & {*x.shape}
        )

    @property
    def _cached(self) -> list[jax.ShapeDtypeStruct]:
        """The caches in one piece, of target and drafter."""
        state, _ = self._prefilled
        caches = state.target_cache, state.draft_state
        specs, mesh = (STATE.target_cache, STATE.draft_state), self.execution.mesh
        if mesh is not None:
            split = self.config.execution.split_drafter
            caches = on_devices(mesh, caches, specs, split_drafter=split)
        return jax.tree.leaves(caches)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of all sequences that a device has."""
        return sum(own_bytes(x) for x in self._cached)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a device holds, the table of embeddings included."""
        return weight_bytes(self.config, self.dtype)

    @property
    def cached_token(self) -> int:
        """Bytes that a cached token takes on a device: target's and drafter's keys and values."""
        own = self.method != "plain"
        return self.costs.cached_row + own * self.costs.drafter_row

    def weights_read(self) -> int:
        """Bytes of the weights that a step must read on a device."""
        costs, drafts = self.costs, self.method != "plain"
        rows = costs.batch * (self.nodes + 1)
        return costs.itemsize * (costs.target_weights(rows) + drafts * costs.drafter_weights)

    @functools.cached_property
    def _prefilled(self) -> tuple[Any, Any]:
        """The state and the host buffer after a prefill; the prompt's length does not matter."""
        begin = partial(prefill, self.config.prefill, capacity=self.capacity)
        return jax.eval_shape(begin, self._params(), *self._prompts(1))

    def least(self, program: Program) -> Cost | None:
        """The least that a program moves and computes on a device, with caches filled up to the
        context; None where the cost model does not say."""
        config, rows, costs = self.config, self.nodes + 1, self.costs
        if program in ("prefill", "search"):
            return None
        if isinstance(config.drafter, Eagle3Config):
            return costs.eagle3_step(config.drafter, config.eagle, self.nodes)
        return costs.plain() if self.method == "plain" else costs.step(rows, config.max_depth + 1)

    def read_in_part(self, program: Program) -> dict[Array, float]:
        """Arrays of which kernels read only what rows need: a mixture's experts, with the share of
        them that rows reach."""
        moe = self.config.target.moe
        if moe is None or program == "prefill":
            return {}
        share = self.costs.reached_experts(self.costs.batch * (self.nodes + 1)) / moe.num_experts
        d, f = self.config.target.hidden_size, moe.intermediate_size
        own = moe.num_experts // self.execution.shards
        shapes = ((own, d, f), (own, f, d))
        return {Array(_XLA_NAMES[self.dtype], shape): share for shape in shapes}

    @functools.cached_property
    def costs(self) -> CostModel:
        """The model of what a device moves and computes."""
        drafter, itemsize = self.config.drafter, jnp.dtype(self.dtype).itemsize
        if not isinstance(drafter, DrafterConfig):
            drafter = drafter_of(self.config.target)
        return CostModel.of(self.config, drafter, self.batch, self.context, itemsize)

    @property
    def _param_specs(self) -> Any:
        return param_specs(self.config, self._params())

    def _params(self) -> dict[str, Any]:
        return abstract_weights(self.config, self.dtype)

    def _prompts(self, length: int) -> tuple[Any, ...]:
        batch, seed = self.batch, jax.ShapeDtypeStruct((), jnp.uint32)
        stop = _ints(len(padded_stop((0,))))
        prompts = (_ints(batch, length), _ints(batch), _ints(batch))
        return (*prompts, stop, seed, self.sampling.values())


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _table(ngrams: int) -> DeviceTable:
    """The shapes of a table with so many n-grams of two and three tokens."""
    places = ngrams + ngrams // 9 + 1
    return DeviceTable(
        sections=_ints(2, 4),
        seeds=jax.ShapeDtypeStruct((ngrams // 4 + 1,), jnp.uint16),
        prints=jax.ShapeDtypeStruct((places,), jnp.uint8),
        entries=_ints(places, 3),
        vocab_size=_ints(),
        lists=_ints(0, 2),
        followers=_ints(0, 2),
    )
