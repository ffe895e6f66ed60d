"""Times one call of a program, without and with its dispatch.

The device time comes from many calls inside one jitted loop, divided by their number. Each call's
inputs depend on the previous call's outputs, so that the compiler cannot hoist anything out of the
loop.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dart_jax.models.sharding.placement import put

_MAX_CALLS = 1024


@dataclasses.dataclass(frozen=True)
class Timing:
    """How to measure.

    Attributes:
      repeats: measurements of each kind.
      seconds: approximate time of all calls of one measurement.
    """

    repeats: int = 5
    seconds: float = 0.1


@dataclasses.dataclass(frozen=True)
class Times:
    """Times of one call, in seconds, one value per repeat.

    Attributes:
      device: time of a call among many in one program; empty for work on the host.
      wall: time of a single call, dispatched and waited for; empty if that was not timed.
      calls: number of calls per value of `device`.
    """

    device: list[float]
    wall: list[float]
    calls: int = 1

    @property
    def values(self) -> list[float]:
        """`device`, or `wall` for work on the host."""
        return self.device or self.wall

    @property
    def seconds(self) -> float:
        """The median of `values`."""
        return statistics.median(self.values)

    @property
    def single_call(self) -> float:
        """The median of `wall` if single calls were timed, otherwise `seconds`."""
        return statistics.median(self.wall or self.device)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and upper quartile of `values`."""
        values = self.values
        if len(values) == 1:
            return values[0], values[0]
        lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
        return lower, upper


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """How the devices of a mesh have a stage's arrays: specs, trees of them, or their beginnings.

    Attributes:
      mesh: the devices.
      fixed: of `Stage.fixed`.
      inputs: of `Stage.inputs`.
      donated: of `Stage.donated`.
      outputs: of what the function returns besides.
    """

    mesh: Mesh
    fixed: Any
    inputs: Any
    donated: Any
    outputs: Any

    def place(self, specs: Any, arrays: Any) -> Any:
        """Puts arrays where the specs say; those that are there stay."""

        def placed(spec: P, part: Any) -> Any:
            sharding = NamedSharding(self.mesh, spec)
            return jax.tree.map(lambda x: put(x, sharding), part)

        return jax.tree.map(placed, specs, arrays, is_leaf=lambda x: isinstance(x, P))

    def on_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of fixed, inputs and donated, run by every device with its parts of them."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(self.fixed, self.inputs, self.donated),
            out_specs=(self.donated, self.outputs),
            check_vma=False,
        )


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a step, as a pure function: fixed, inputs, donated -> donated, outputs.

    Attributes:
      function: a function of three pytrees of arrays.
      fixed: read-only arrays, such as weights.
      inputs: arrays that the timing loop perturbs, so that nothing depending on them is hoisted.
      donated: arrays such as caches, which the function returns with the same shapes.
      calls: number of calls per measurement, if single calls are not to be timed, which compiles a
        second program.
      layout: how the devices of a mesh have the arrays, if several run it.
    """

    function: Callable[[Any, Any, Any], tuple[Any, Any]]
    fixed: Any
    inputs: Any
    donated: Any = ()
    calls: int | None = None
    layout: Layout | None = None

    def placed(self) -> Stage:
        """The same with all arrays where its devices want them."""
        if (layout := self.layout) is None:
            return self
        return dataclasses.replace(
            self,
            fixed=layout.place(layout.fixed, self.fixed),
            inputs=layout.place(layout.inputs, self.inputs),
            donated=layout.place(layout.donated, self.donated),
        )

    def __call__(self) -> tuple[Any, Any]:
        """Calls it once; returns `donated` anew, and the outputs."""
        placed = self.placed()
        return _single_call(
            self.function, placed.fixed, placed.inputs, placed.donated, layout=self.layout
        )


def measure(stage: Stage, timing: Timing) -> tuple[Times, Any, Any]:
    """Times a stage; first calls, which compile, are not counted.

    Returns:
      The times; `donated` as the last call returned it, since the stage's own was donated; and the
      last call's outputs.
    """
    stage = stage.placed()
    donated, outputs = stage.donated, None
    on = {"layout": stage.layout}

    def single_call() -> float:
        nonlocal donated, outputs
        outputs = None  # free them before the call
        start = time.perf_counter()
        result = _single_call(stage.function, stage.fixed, stage.inputs, donated, **on)
        donated, outputs = jax.block_until_ready(result)
        return time.perf_counter() - start

    def looped_calls(calls: int) -> float:
        nonlocal donated, outputs
        outputs = None  # free them before the call
        start = time.perf_counter()
        result = _looped_calls(stage.function, calls, stage.fixed, stage.inputs, donated, **on)
        donated, outputs = jax.block_until_ready(result)
        return (time.perf_counter() - start) / calls

    calls = stage.calls
    if calls is None:
        single_call()
        calls = calls_in(timing.seconds, min(single_call(), single_call()))
    looped_calls(calls)
    device, wall = [], []
    for _ in range(timing.repeats):
        device.append(looped_calls(calls))
        if stage.calls is None:
            wall.append(statistics.median(single_call() for _ in range(3)))
    return Times(device, wall, calls), donated, outputs


def measure_host(
    work: Callable[[Any], Any], timing: Timing, prepare: Callable[[], Any] = lambda: None
) -> Times:
    """Times work on the host, call by call; `prepare`, which makes its input, is not timed."""

    def once() -> float:
        argument = prepare()
        start = time.perf_counter()
        jax.block_until_ready(work(argument))
        return time.perf_counter() - start

    once()
    calls = calls_in(timing.seconds, min(once(), once()))
    wall = [statistics.median(once() for _ in range(calls)) for _ in range(timing.repeats)]
    return Times([], wall, calls)


def calls_in(seconds: float, per_call: float) -> int:
    """Returns how many calls take about `seconds`: a power of two, so that few programs compile."""
    return 1 << math.ceil(math.log2(min(max(seconds / per_call, 2), _MAX_CALLS)))


@partial(jax.jit, static_argnames=("function", "layout"), donate_argnames=("donated",))
def _single_call(
    function: Any, fixed: Any, inputs: Any, donated: Any, layout: Layout | None = None
) -> tuple[Any, Any]:
    run = function if layout is None else layout.on_devices(function)
    return run(fixed, inputs, donated)


@partial(jax.jit, static_argnames=("function", "calls", "layout"), donate_argnames=("donated",))
def _looped_calls(
    function: Any, calls: int, fixed: Any, inputs: Any, donated: Any, layout: Layout | None = None
) -> tuple[Any, Any]:
    """Makes `calls` calls in a row; returns the last one's results. Their number is static, so that
    a GPU need not ask the host after every call. Devices of a mesh run a loop each, in step where
    they exchange something."""
    loop = partial(_loop, function, calls)
    run = loop if layout is None else layout.on_devices(loop)
    return run(fixed, inputs, donated)


def _loop(function: Any, calls: int, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    _, shapes = jax.eval_shape(function, fixed, inputs, donated)
    outputs = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def body(_, carry):
        inputs, donated, outputs, zero = carry
        inputs = jax.tree.map(partial(_perturb, zero), inputs)
        donated, outputs = function(fixed, inputs, donated)
        return inputs, donated, outputs, _opaque_zero(outputs)

    carry = (inputs, donated, outputs, jnp.zeros((), jnp.bool))
    _, donated, outputs, _ = jax.lax.fori_loop(0, calls, body, carry)
    return donated, outputs


def _opaque_zero(outputs: Any) -> jax.Array:
    """Returns False in a way the compiler cannot see through: the first output is never NaN, nor
    the largest int32."""
    leaf = jax.tree.leaves(outputs)[0]
    first = leaf[(0,) * leaf.ndim]
    if jnp.issubdtype(first.dtype, jnp.floating):
        return jnp.isnan(first)
    return first == jnp.iinfo(first.dtype).max


def _perturb(zero: jax.Array, leaf: jax.Array) -> jax.Array:
    """Returns `leaf` with `zero` added to its first element, in place."""
    if leaf.dtype not in (jnp.int32, jnp.float32, jnp.bfloat16):
        return leaf
    return leaf.at[(0,) * leaf.ndim].add(zero.astype(leaf.dtype))
