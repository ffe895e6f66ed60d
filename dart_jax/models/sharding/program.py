"""Programs that several devices run together, each with its part of the arrays.

Every device runs the same program (`jax.shard_map`): it has the rows of its group, and of a model
that devices share its part of the weights and the heads that belong to it. All else the devices of
a group compute alike. So kernels, the search and plain JAX need not know of other devices; what
these exchange is written where it happens (`collectives.py`).

If JAX 0.10 placed the exchanges from the shardings of arguments, it would gather pages, whole rows
for a top-k, experts and joined projections from other devices.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from operator import itemgetter
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.models.sharding.mesh import DATA
from dart_jax.models.sharding.rules import model_specs


@dataclasses.dataclass(frozen=True)
class OnDevices:
    """The spec of what the host never reads: a process has no more of it than its devices.

    Attributes:
      spec: the spec.
      split: the spec if devices share the drafter, by default the same.
    """

    spec: P
    split: P | None = None


# On all devices; and by rows.
ALL, ROWS = P(), P(DATA)
DEVICE_ROWS = OnDevices(ROWS)


def param_specs(config: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specs of the models' parameters by name: "target" is split, and perhaps
    "drafter"; others are whole on every device. `config` is the decode step's."""
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
    config: Callable[[Mapping[str, Any]], Any] = itemgetter("config"),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a function whose argument `params`, if it has one, is the decode step's, for one
    device or, if the step's config says so, for several.

    Args:
      inputs: the specs of its other arrays, by name; trees of specs, or their beginnings.
      outputs: the specs of its results, in the same way. Of those by rows, every process gets all
        rows, unless they are `DEVICE_ROWS`.
      static: names of arguments that programs are compiled for.
      donated: names of arguments whose memory may be reused.
      config: the decode step's config, from all arguments by name.
    """

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @partial(jax.jit, static_argnames=static, donate_argnames=donated)
        @wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            arguments = signature.bind(*args, **options).arguments
            devices = config(arguments).execution.devices
            mesh, split = devices.mesh, devices.split_drafter
            if mesh is None:
                return function(*args, **options)
            arrays = {**arguments}
            constants = {name: arrays.pop(name) for name in arguments if name in static}
            specs = {
                name: None if x is None else specs_of(inputs.get(name), split)
                for name, x in arrays.items()
            }
            if "params" in arrays:
                specs["params"] = param_specs(config(arguments), arrays["params"])
            shared = lambda arrays: function(**constants, **arrays)  # noqa: E731
            out = specs_of(outputs, split)
            results = jax.shard_map(
                shared, mesh=mesh, in_specs=(specs,), out_specs=out, check_vma=False
            )(arrays)
            if jax.process_count() == 1:
                return results
            constrain, whole = jax.lax.with_sharding_constraint, NamedSharding(mesh, ALL)
            return jax.tree.map(
                lambda spec, part: constrain(part, whole) if spec == ROWS else part,
                outputs,
                results,
                is_leaf=lambda x: isinstance(x, P | OnDevices),
            )

        return run

    return compiled


def specs_of(tree: Any, split_drafter: bool = False) -> Any:
    """Returns a tree's specs for `jax.shard_map`, where devices share the drafter or not."""

    def spec(x: P | OnDevices) -> P:
        if isinstance(x, P):
            return x
        return x.split if split_drafter and x.split is not None else x.spec

    return jax.tree.map(spec, tree, is_leaf=lambda x: isinstance(x, P | OnDevices))
