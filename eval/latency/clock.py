"""How long one call of a program takes, without and with what it takes to dispatch it.

The device's time comes from many calls inside one jitted loop, divided by their number. What a
stage is given is changed a little by what the call before left, so that the compiler can move
nothing out of the loop.
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

_MOST_CALLS = 1024


@dataclasses.dataclass(frozen=True)
class Timing:
    """How to measure.

    Attributes:
      repeats: figures of each kind.
      seconds: that the calls of one figure take together, about.
    """

    repeats: int = 5
    seconds: float = 0.1


@dataclasses.dataclass(frozen=True)
class Measured:
    """Times of one call, in seconds, one figure a repeat.

    Attributes:
      device: of a call among many in one program; empty for what the host does.
      wall: of a call that is dispatched alone and waited for; empty if that was not timed.
      calls: of a figure of `device`.
    """

    device: list[float]
    wall: list[float]
    calls: int = 1

    @property
    def seconds(self) -> float:
        """The median: the device's, or the host's where it did the work."""
        return statistics.median(self.device or self.wall)

    @property
    def alone(self) -> float:
        """The median of a call that is dispatched alone, where that was timed; else `seconds`."""
        return statistics.median(self.wall or self.device)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and upper one of the same figures."""
        figures = self.device or self.wall
        if len(figures) == 1:
            return figures[0], figures[0]
        lower, _, upper = statistics.quantiles(figures, n=4, method="inclusive")
        return lower, upper


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a step, as a pure function: fixed, inputs, moved -> moved, outputs.

    Attributes:
      function: of three pytrees of arrays.
      fixed: such as weights; only read.
      inputs: what the loop changes, and with it all that depends on it.
      moved: such as caches; donated, and returned by the function at the same shapes.
      calls: of a figure, where a call alone is not to be timed, which would take another program.
    """

    function: Callable[[Any, Any, Any], tuple[Any, Any]]
    fixed: Any
    inputs: Any
    moved: Any = ()
    calls: int | None = None


def measure(stage: Stage, timing: Timing) -> tuple[Measured, Any, Any]:
    """Times a stage; first calls, which compile, are not counted.

    Returns:
      The times; `moved` as the last call left it, since what the stage held was donated; and that
      call's outputs.
    """
    moved, outputs = stage.moved, None

    def alone() -> float:
        nonlocal moved, outputs
        outputs = None  # not to hold them twice
        began = time.perf_counter()
        made = _once(stage.function, stage.fixed, stage.inputs, moved)
        moved, outputs = jax.block_until_ready(made)
        return time.perf_counter() - began

    def many(calls: int) -> float:
        nonlocal moved, outputs
        outputs = None  # not to hold them twice
        began = time.perf_counter()
        made = _calls(stage.function, calls, stage.fixed, stage.inputs, moved)
        moved, outputs = jax.block_until_ready(made)
        return (time.perf_counter() - began) / calls

    calls = stage.calls
    if calls is None:
        alone()
        calls = calls_in(timing.seconds, min(alone(), alone()))
    many(calls)
    device, wall = [], []
    for _ in range(timing.repeats):
        device.append(many(calls))
        if stage.calls is None:
            wall.append(statistics.median(alone() for _ in range(3)))
    return Measured(device, wall, calls), moved, outputs


def measure_host(
    work: Callable[[Any], Any], timing: Timing, prepare: Callable[[], Any] = lambda: None
) -> Measured:
    """Times what the host does, call by call; what `prepare` makes for each is not timed."""

    def once() -> float:
        given = prepare()
        began = time.perf_counter()
        jax.block_until_ready(work(given))
        return time.perf_counter() - began

    once()
    calls = calls_in(timing.seconds, min(once(), once()))
    wall = [statistics.median(once() for _ in range(calls)) for _ in range(timing.repeats)]
    return Measured([], wall, calls)


def calls_in(seconds: float, one: float) -> int:
    """Calls that take so long together: a power of two, so that programs stay few."""
    return 1 << math.ceil(math.log2(min(max(seconds / one, 2), _MOST_CALLS)))


@partial(jax.jit, static_argnames=("function",), donate_argnames=("moved",))
def _once(function: Any, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    return function(fixed, inputs, moved)


@partial(jax.jit, static_argnames=("function", "calls"), donate_argnames=("moved",))
def _calls(function: Any, calls: int, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """So many calls in a row: what is moved, and the last one's outputs. Of a number known to the
    compiler: a GPU need not ask the host after every one."""
    _, shapes = jax.eval_shape(function, fixed, inputs, moved)
    outputs = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def body(_, carry):
        inputs, moved, outputs, zero = carry
        inputs = jax.tree.map(partial(_nudge, zero), inputs)
        moved, outputs = function(fixed, inputs, moved)
        return inputs, moved, outputs, _zero(outputs)

    carry = (inputs, moved, outputs, jnp.zeros((), jnp.bool))
    _, moved, outputs, _ = jax.lax.fori_loop(0, calls, body, carry)
    return moved, outputs


def _zero(outputs: Any) -> jax.Array:
    """False, as the compiler cannot know: the first output is never NaN, nor the largest int32."""
    leaf = jax.tree.leaves(outputs)[0]
    first = leaf[(0,) * leaf.ndim]
    if jnp.issubdtype(first.dtype, jnp.floating):
        return jnp.isnan(first)
    return first == jnp.iinfo(first.dtype).max


def _nudge(zero: jax.Array, leaf: jax.Array) -> jax.Array:
    """The same array: its first element gets `zero` added, in place."""
    if leaf.dtype not in (jnp.int32, jnp.float32, jnp.bfloat16):
        return leaf
    return leaf.at[(0,) * leaf.ndim].add(zero.astype(leaf.dtype))
