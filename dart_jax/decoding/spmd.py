"""Programs that several devices run together, each with its part of the arrays.

Every device runs the same program (`jax.shard_map`): it has the rows of its group, and of the
target its part of the weights and the heads that belong to it. What else there is, all devices of a
group compute alike. So kernels, the search and plain JAX need not know of each other's devices;
what they exchange is written where it happens (`dart_jax.models.sharding.collectives`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.models.sharding.mesh import DATA, MODEL
from dart_jax.models.sharding.rules import target_specs

# On all devices; by rows; and the target's keys and values [B, K, S, h], by rows and heads.
ALL, ROWS, CACHE = P(), P(DATA), P(DATA, MODEL)

STATE = DecodeState(
    target_cache=CACHE,  # pyright: ignore[reportArgumentType]
    stop=ALL,  # pyright: ignore[reportArgumentType]
    sampling=ALL,  # pyright: ignore[reportArgumentType]
    **{
        name: ROWS
        for name in DecodeState.__dataclass_fields__
        if name not in ("target_cache", "stop", "sampling")
    },
)


def param_specs(config: DecodeConfig, params: DecodeParams) -> DecodeParams:
    """The specs of what `DecodeParams` has: the target's weights are split, a drafter is whole on
    every device."""
    specs: DecodeParams = dict.fromkeys(params, ALL)
    return specs | {"target": target_specs(config.target, params["target"])}


def program(
    *,
    inputs: Mapping[str, Any],
    outputs: Any,
    static: tuple[str, ...] = ("config",),
    donated: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a function whose arguments `config` and `params` are the decode step's, for one
    device or, if the config says so, for several.

    Args:
      inputs: the specs of its other arrays, by name; trees of specs, or their beginnings.
      outputs: the specs of its results, in the same way. Where they are by rows only, every process
        gets all rows.
      static: names of arguments that programs are compiled for.
      donated: names of arguments whose memory may be reused.
    """

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @partial(jax.jit, static_argnames=static, donate_argnames=donated)
        @wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            given = signature.bind(*args, **options).arguments
            config: DecodeConfig = given["config"]
            mesh = config.execution.mesh
            if mesh is None:
                return function(*args, **options)
            fixed = {name: value for name, value in given.items() if name in static}
            arrays = {name: value for name, value in given.items() if name not in static}
            specs = {n: None if x is None else inputs.get(n) for n, x in arrays.items()}
            specs["params"] = param_specs(config, arrays["params"])
            results = jax.shard_map(
                lambda arrays: function(**fixed, **arrays),
                mesh=mesh,
                in_specs=(specs,),
                out_specs=outputs,
                check_vma=False,
            )(arrays)
            everywhere = NamedSharding(mesh, ALL)

            def gathered(spec: P, part: Any) -> Any:
                if spec != ROWS:
                    return part
                constrain = jax.lax.with_sharding_constraint
                return jax.tree.map(lambda x: constrain(x, everywhere), part)

            if jax.process_count() == 1:
                return results
            return jax.tree.map(gathered, outputs, results, is_leaf=lambda x: isinstance(x, P))

        return run

    return compiled
