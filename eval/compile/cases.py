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
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.search.config import SearchWay
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import STATE, DecodeConfig
from dart_jax.decoding.step import step
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.int8 import Int8
from dart_jax.models.sharding.program import ALL, ROWS, param_specs
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.programs import POOLS, Pools, StepProgram, empty_history, empty_pools
from dart_jax.serving.programs import step as serving_step
from dart_jax.serving.rows import PAGES, VALUES, Rows
from eval.compile.hlo import Array
from eval.latency.abstract_arrays import (
    abstract_weights,
    held_bytes,
    ints,
    local_shape,
    ngram_table,
    on_devices,
)
from eval.latency.cost import Cost, CostModel
from eval.latency.shapes import as_loaded, drafter_of, target_of

XLA_NAMES = {"bfloat16": "bf16", "float32": "f32"}

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
      penalties: whether steps also have the bias of logits and the penalties for what the text has,
        for which a server's requests may ask.
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
    penalties: bool = False

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

    @functools.cached_property
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
    def weights(self) -> Literal["stored", "int8"]:
        """How the weights of linear layers and experts are stored."""
        return "int8" if self.execution.rounded else "stored"

    @property
    def capacity(self) -> int:
        """Rows of the caches."""
        return self.config.capacity(self.context)

    def lower(self, program: Program, device: Any) -> jax.stages.Lowered:
        """Lowers one of the programs for a device; it is ignored if there is a mesh, on which all
        but search are spread."""
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
        state, packed = on(self._before_step, (STATE, ROWS))
        if program == "step":
            trees = ints(self.batch, 3, self.nodes + 1)
            trees = on(trees, ROWS) if config.searches else None
            return step.lower(config, params, state, trees)
        search = on(self._search_of(config.host_buffer)) if config.searches else None
        if program == "search":
            assert search is not None
            return jax.jit(type(search).in_program).lower(search, packed)
        return run.lower(config, search, self.context, params, state, packed)

    def _lower_serving(self, on: Any, params: Any) -> jax.stages.Lowered:
        """Lowers the serving engine's step, with caches in pages, and the search if it is on the
        device."""
        nodes = 0 if self.method == "plain" else self.nodes
        level = "greedy" if self.sampling.temperature == 0 else "filtered"
        level = "full" if self.penalties else level
        program = StepProgram(self.config, nodes, nodes, level)
        in_program = self.config.searches and self.search == "device"
        search = on(self._search_of(program.host_buffer)) if in_program else None
        numbers: Any = ints(self.batch, PAGES + self._pages_each)
        values: Any = jax.ShapeDtypeStruct((self.batch, VALUES), jnp.float32)
        rows = Rows(numbers, values)
        trees = ints(self.batch, 3, nodes + 1) if nodes else None
        pools, history = on(self._pools, POOLS), None
        if level == "full":
            empty = partial(empty_history, self.batch, self.config.target.vocab_size)
            history = on(jax.eval_shape(empty))
        return serving_step.lower(program, params, pools, history, on(rows), on(trees), search)

    @property
    def _pages_each(self) -> int:
        return -(-self.context // _PAGE)

    @functools.cached_property
    def _pools(self) -> Pools:
        """The shapes of pools that hold the contexts of all sequences."""
        make = partial(empty_pools, self.config, pages=self.batch * self._pages_each, page=_PAGE)
        return jax.eval_shape(make, self._params())

    def _search_of(self, host_buffer: HostBuffer) -> TreeSearch:
        """The tree search, with abstract arrays."""
        if self.search != "device":
            search = HostSearch(host_buffer, self.nodes, native=self.search == "native")
            return jax.tree.map(lambda _: ints(), search)
        eos, table = (self.config.target.vocab_size - 1,), ngram_table(self.ngrams)
        return DeviceSearch(host_buffer, self.nodes, table=table, eos=eos)

    @functools.cached_property
    def caches(self) -> frozenset[Array]:
        """The shapes of the arrays that hold rows of all cached tokens, on one device."""
        mesh, pools = self.execution.mesh, self._pools
        pools = (
            pools
            if mesh is None
            else on_devices(mesh, pools, POOLS, split_drafter=self.config.execution.split_drafter)
        )
        arrays = [*self._cached, *jax.tree.leaves(pools)]
        return frozenset(
            Array(XLA_NAMES[x.dtype.name], local_shape(x))
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
        return sum(held_bytes(x) for x in self._cached)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a device holds, the table of embeddings included."""
        return sum(held_bytes(x) for x in jax.tree.leaves(self._placed_params))

    @functools.cached_property
    def _placed_params(self) -> dict[str, Any]:
        """The parameters' shapes, on a mesh if there is one."""
        mesh, params = self.execution.mesh, self._params()
        return params if mesh is None else on_devices(mesh, params, self._param_specs)

    @property
    def cached_token(self) -> int:
        """Bytes that a cached token takes on a device: target's and drafter's keys and values."""
        own = self.method != "plain"
        return self.costs.cached_row + own * self.costs.drafter_row

    @property
    def weights_needed(self) -> int:
        """Bytes of the weights that a step must read on a device."""
        costs, drafts = self.costs, self.method != "plain"
        weights = costs.target_weights(self._rows) + drafts * costs.drafter_weights
        return costs.itemsize * weights - self._saved(1)

    @property
    def _rows(self) -> int:
        """Rows of a step of the target on a device."""
        return self.costs.batch * (self.nodes + 1)

    def _saved(self, passes: int) -> int:
        """Bytes by which weights in 8 bits, with their scales, are fewer than the dtype's, of those
        that a step reads on a device; the drafter's layer and head are read in every pass."""
        if not self.execution.rounded:
            return 0
        share, total = self._reached_share, 0.0
        found = jax.tree_util.tree_flatten_with_path(
            self._placed_params, is_leaf=lambda x: isinstance(x, Int8)
        )[0]
        for path, leaf in found:
            if isinstance(leaf, Int8):
                names = [key.key for key in path]
                values: Any = leaf.values
                scale: Any = leaf.scale
                saved = (self.costs.itemsize - 1) * held_bytes(values) - held_bytes(scale)
                again = names[0] == "drafter" and "fc" not in names
                total += saved * (share if "experts" in names else passes if again else 1)
        return round(total)

    @property
    def _reached_share(self) -> float:
        """The share of a mixture's experts that rows of a step reach; 1 without a mixture."""
        moe = self.config.target.moe
        return 1 if moe is None else self.costs.reached_experts(self._rows) / moe.num_experts

    @functools.cached_property
    def _prefilled(self) -> tuple[Any, Any]:
        """The state and the host buffer after a prefill; the prompt's length does not matter."""
        begin = partial(prefill, self.config.prefill, capacity=self.capacity)
        return jax.eval_shape(begin, self._params(), *self._prompts(1))

    @functools.cached_property
    def _before_step(self) -> tuple[Any, Any]:
        """The same, with what penalties and bias need."""
        state, packed = self._prefilled
        if not self.penalties:
            return state, packed
        number, vocabulary = jax.ShapeDtypeStruct((), jnp.float32), self.config.target.vocab_size
        each = (self.batch, vocabulary)
        sampling = state.sampling._replace(
            repetition_penalty=number, presence_penalty=number, frequency_penalty=number
        )
        state = dataclasses.replace(
            state,
            sampling=sampling,
            seen=jax.ShapeDtypeStruct(each, jnp.bool_),
            counts=ints(*each),
            bias=jax.ShapeDtypeStruct(each, jnp.float32),
        )
        return state, packed

    def least(self, program: Program) -> Cost | None:
        """The least that a program moves and computes on a device, with caches filled up to the
        context; None where the cost model does not say."""
        config, rows, costs = self.config, self.nodes + 1, self.costs
        if program in ("prefill", "search"):
            return None
        if isinstance(config.drafter, Eagle3Config):
            cost = costs.eagle3_step(config.drafter, config.eagle, self.nodes)
            passes = 1 + config.eagle.later_passes(self.nodes)
        else:
            plain = self.method == "plain"
            cost = costs.plain() if plain else costs.step(rows, config.max_depth + 1)
            passes = 1
        return cost._replace(bytes=cost.bytes - self._saved(passes))

    def read_in_part(self, program: Program) -> dict[Array, float]:
        """Arrays of which kernels read only what rows need: a mixture's experts, with the share of
        them that rows reach."""
        moe = self.config.target.moe
        if moe is None or program == "prefill":
            return {}
        d, f = self.config.target.hidden_size, moe.intermediate_size
        own = moe.num_experts // self.execution.shards
        shapes = ((own, d, f), (own, f, d))
        name = "s8" if self.execution.rounded else XLA_NAMES[self.dtype]
        return {Array(name, shape): self._reached_share for shape in shapes}

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
        stop = ints(len(padded_stop((0,))))
        prompts = (ints(batch, length), ints(batch), ints(batch))
        return (*prompts, stop, seed, self.sampling.values())
