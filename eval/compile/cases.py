"""Programs of decoding in the shape of a published model, with abstract arguments: nothing is
allocated."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.drafting.text import LONGEST
from dart_jax.decoding.reading import ChunkShape
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.tree import TREE_ROWS
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.pools import POOLS, empty_pools
from dart_jax.engine.programs import BurstProgram, burst, config_of, read_chunk
from dart_jax.engine.rows import NUMBERS, VALUES, Rows, empty_history
from dart_jax.engine.shapes import CHUNK, STEPS_OFFLINE
from dart_jax.models.drafter_config import DartConfig, DraftLayerConfig, Eagle3Config
from dart_jax.models.networks.sizes import stored_shapes
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.devices import Devices
from dart_jax.models.sharding.program import ALL, DEVICE_ROWS, ROWS, param_specs, specs_of
from dart_jax.ngram.device_table import DeviceTable
from eval.compile.config import Level, Method, Program
from eval.latency.shapes import (
    Cost,
    as_loaded,
    block_drafter_of,
    cost,
    drafter_of,
    target_of,
)

# N-grams of two and three tokens in the table of a search on the device: the demo model's.
_NGRAMS = 1_700_000

# Steps of a server's burst, and ids that end a text.
_SERVED_STEPS, _STOP_IDS = 4, 8


@dataclasses.dataclass(frozen=True)
class Case:
    """One method in one setting, as `CompileConfig` names them, with trees of so many nodes besides
    the root; of a prompt of more than 512 tokens, the last chunk is compiled. `execution` is how
    the models are computed, and the mesh of several devices."""

    shape: str
    method: Method
    nodes: int
    batch: int
    context: int
    prompt: int = 1024
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    level: Level = "greedy"
    layers: int | None = None
    execution: Execution = Execution()

    @functools.cached_property
    def config(self) -> DecodeConfig:
        """The decoding that the programs are compiled for."""
        target = target_of(self.shape)
        if self.layers is not None:
            target = dataclasses.replace(target, num_hidden_layers=self.layers)
        drafter: DraftLayerConfig
        match self.method:
            case "eagle3":
                drafter = Eagle3Config.for_target(target)
            case "dflash" | "dspark":
                drafter = block_drafter_of(target, self.method)
            case "plain" | "text" | "dart":
                drafter = drafter_of(target)
        target, drafter, execution = as_loaded(target, drafter, self.execution)
        if self.method == "plain":
            return DecodeConfig(target, execution=execution)
        own = None if self.method == "text" else drafter
        return DecodeConfig(target, own, self.nodes, text=True, execution=execution)

    @property
    def cost(self) -> Cost:
        """The least work of a step (see `eval.latency.shapes.cost`); nothing where it is not known:
        for other drafters than DART's, for weights in 8 bits, and on several devices."""
        drafter, execution = self.config.drafter, self.execution
        known = self.method in ("plain", "text") or isinstance(drafter, DartConfig)
        if not known or execution.weights.int8 or execution.devices.mesh is not None:
            return Cost(0, 0)
        return cost(self.config, self.dtype, self.batch, self.context)

    @property
    def rows(self) -> int:
        """Sequences of each group of devices."""
        return self.batch // self.execution.devices.groups

    def on(self, mesh: Any) -> Case:
        """Returns the same on a mesh of devices, or on one device for None."""
        return dataclasses.replace(
            self, execution=dataclasses.replace(self.execution, devices=Devices(mesh))
        )

    @functools.cached_property
    def params(self) -> dict[str, Any]:
        """The parameters' shapes (see `DecodeParams`)."""
        config, drafter = self.config, self.config.drafter
        how = {"int8": config.execution.weights.int8, "fused": config.execution.weights.fused}
        params = {"target": stored_shapes(config.target, self.dtype, **how)}
        if isinstance(drafter, DraftLayerConfig):
            params["drafter"] = stored_shapes(drafter, self.dtype, **how)
            params["draft_ids"] = _ints(drafter.draft_vocab_size)
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
    devices = config.execution.devices
    on = partial(_on_devices, devices.mesh or device, split_drafter=devices.split_drafter)
    params = on(case.params, param_specs(config, case.params))
    if program == "search":
        packed = on(_ints(case.batch, config.host_buffer.width), ROWS)
        search = on(_search(case))
        return jax.jit(type(search).in_program).lower(search, packed)
    page = EngineConfig().page if program == "serve" else config.capacity(case.context)
    columns = -(-case.context // page)
    empty = partial(empty_pools, config, pages=case.rows * columns, page=page)
    pools = on(jax.eval_shape(empty, case.params), POOLS)
    pages = on(_ints(case.batch, columns), ROWS)
    if program == "prefill":
        length = min(case.prompt, CHUNK)
        filled = columns * page if case.prompt > CHUNK else 0
        tokens, start = on((_ints(case.batch, length + 1), _ints(case.batch)), (ROWS, ROWS))
        shape = ChunkShape(length, filled)
        return read_chunk.lower(config.reading, params, pools, tokens, start, pages, shape=shape)
    steps = {"step": 1, "loop": STEPS_OFFLINE, "serve": _SERVED_STEPS}[program]
    static = BurstProgram(config_of(config, case.nodes, case.level), case.level, steps)
    numbers, stop = _ints(case.batch, NUMBERS), _ints(case.batch, _STOP_IDS)
    values = jax.ShapeDtypeStruct((case.batch, VALUES), jnp.float32)
    numbers, values, stop = on((numbers, values, stop), (ROWS, ROWS, ROWS))
    tokens = on(_ints(case.batch, columns * page), ROWS) if config.texts_draft else None
    rows = Rows(numbers, values, stop, pages, tokens)
    trees = on(_ints(case.batch, TREE_ROWS, case.nodes + 1), ROWS) if case.nodes else None
    history = None
    if case.level == "full":
        vocabulary = config.target.vocab_size
        history = jax.eval_shape(partial(empty_history, case.batch, vocabulary))
        history = on(history, DEVICE_ROWS)
    # A single step leaves out the search.
    search = on(_search(case)) if config.searches and steps > 1 else None
    limits = on((_ints(), _ints()))
    trust = on(jax.ShapeDtypeStruct((LONGEST,), jnp.float32)) if config.texts_draft else None
    return burst.lower(static, params, pools, history, rows, trees, search, *limits, trust=trust)


def _search(case: Case) -> DeviceSearch:
    """Returns the tree search, with abstract arrays."""
    places = _NGRAMS + _NGRAMS // 9 + 1
    table = DeviceTable(
        sections=_ints(2, 4),
        seeds=jax.ShapeDtypeStruct((_NGRAMS // 4 + 1,), jnp.uint16),
        entries=_ints(places, 3),
        vocab_size=_ints(),
    )
    eos = (case.config.target.vocab_size - 1,)
    return DeviceSearch(case.config.host_buffer, case.nodes, table=table, eos=eos)
