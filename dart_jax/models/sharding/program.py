"""Programs that several devices run together, each with its part of the arrays.

Every device runs the same program (`jax.shard_map`): it has the rows of its group, and of a model
that devices share its part of the weights and the heads that belong to it. What else there is, all
devices of a group compute alike. So kernels, the search and plain JAX need not know of other
devices; what these exchange is written where it happens (`collectives.py`).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.models.config import TargetConfig
from dart_jax.models.sharding.devices import Devices
from dart_jax.models.sharding.mesh import DATA, MODEL
from dart_jax.models.sharding.rules import model_specs


@dataclasses.dataclass(frozen=True)
class OnDevices:
    """The spec of what the host never reads: a process has no more of it than its devices.

    Attributes:
      spec: the spec.
      split: the spec if devices share the drafter; None for the same.
    """

    spec: P
    split: P | None = None


# On all devices; by rows; and keys and values [B, K, S, h], by rows and heads.
ALL, ROWS, CACHE = P(), P(DATA), P(DATA, MODEL)
DEVICE_ROWS, DRAFT_ROWS = OnDevices(ROWS), OnDevices(ROWS, CACHE)


class _Execution(Protocol):
    @property
    def devices(self) -> Devices: ...


class _Config(Protocol):
    """What must be known of the config that a program is compiled for."""

    @property
    def target(self) -> TargetConfig: ...
    @property
    def drafter(self) -> Any: ...
    @property
    def execution(self) -> _Execution: ...


def param_specs(config: _Config, params: Mapping[str, Any]) -> dict[str, Any]:
    """The specs of the models' parameters by name: those of "target" are split, and perhaps those
    of "drafter"; others are whole on every device."""
    specs: dict[str, Any] = dict.fromkeys(params, ALL)
    if config.execution.devices.split_drafter and "drafter" in params:
        specs["drafter"] = model_specs(config.drafter, params["drafter"])
    return specs | {"target": model_specs(config.target, params["target"])}


def program(
    *,
    inputs: Mapping[str, Any],
    outputs: Any,
    static: tuple[str, ...] = ("config",),
    donated: tuple[str, ...] = (),
    config: str = "config",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a function whose arguments `config` and `params` are the decode step's, for one
    device or, if the config says so, for several.

    Args:
      inputs: the specs of its other arrays, by name; trees of specs, or their beginnings.
      outputs: the specs of its results, in the same way. Of those by rows, every process gets all
        rows, unless they are `DEVICE_ROWS` or `DRAFT_ROWS`.
      static: names of arguments that programs are compiled for.
      donated: names of arguments whose memory may be reused.
      config: the name of the argument that is the config, or has its `target`, `drafter` and
        `execution`.
    """

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @partial(jax.jit, static_argnames=static, donate_argnames=donated)
        @wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            given = signature.bind(*args, **options).arguments
            compiled_for: _Config = given[config]
            mesh = compiled_for.execution.devices.mesh
            if mesh is None:
                return function(*args, **options)
            split = compiled_for.execution.devices.split_drafter
            fixed = {name: value for name, value in given.items() if name in static}
            arrays = {name: value for name, value in given.items() if name not in static}
            specs = {
                name: None if x is None else specs_of(inputs.get(name), split)
                for name, x in arrays.items()
            }
            specs["params"] = param_specs(compiled_for, arrays["params"])
            results = jax.shard_map(
                lambda arrays: function(**fixed, **arrays),
                mesh=mesh,
                in_specs=(specs,),
                out_specs=specs_of(outputs, split),
                check_vma=False,
            )(arrays)
            whole = NamedSharding(mesh, ALL)

            def gathered(spec: P | OnDevices, part: Any) -> Any:
                if spec != ROWS:
                    return part
                constrain = jax.lax.with_sharding_constraint
                return jax.tree.map(lambda x: constrain(x, whole), part)

            if jax.process_count() == 1:
                return results
            return jax.tree.map(gathered, outputs, results, is_leaf=_is_spec)

        return run

    return compiled


def _is_spec(x: Any) -> bool:
    return isinstance(x, P | OnDevices)


def specs_of(tree: Any, split_drafter: bool = False) -> Any:
    """The specs in a tree of them, for `jax.shard_map`, where devices share the drafter or not."""

    def spec(x: P | OnDevices) -> P:
        if not isinstance(x, OnDevices):
            return x
        return x.split if split_drafter and x.split is not None else x.spec

    return jax.tree.map(spec, tree, is_leaf=_is_spec)
