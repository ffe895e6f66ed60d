"""The stages of a decode step as functions for `eval.latency.clock.Stage`.

A stage is a function of fixed arrays, inputs and donated arrays, such as caches; it returns the
donated arrays and its outputs. The timing loop reads the first output, so that one must depend on
the whole computation. All stages except the step itself support DART only, without pair scores.

Each says how the devices of a mesh have its arrays, with the specs of decoding's own programs (see
`dart_jax.models.sharding.program`): what one stage leaves on a device, the next one takes up there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from dart_jax.decoding.drafting.dart import Dart
from dart_jax.decoding.state import STATE, DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import (
    Verified,
    accept_and_compact,
    decode_step,
    draft_input,
    exact_products,
    pack,
    verify,
)
from dart_jax.decoding.vocabulary import Vocabulary
from dart_jax.models.cache import extend
from dart_jax.models.sharding.collectives import once
from dart_jax.models.sharding.mesh import DATA, MODEL
from dart_jax.models.sharding.program import (
    ALL,
    CACHE,
    DRAFT_ROWS,
    ROWS,
    OnDevices,
    param_specs,
    specs_of,
)
from eval.latency.clock import Layout, Stage


class _Params:
    """Stands for the specs of the models' parameters, which depend on the target."""


PARAMS = _Params()
# Of the logits each device has those of its part of the vocabulary.
_LOGITS = P(DATA, None, MODEL)
VERIFIED: Any = Verified(_LOGITS, ROWS, CACHE)  # pyright: ignore[reportArgumentType]
DRAFT_LOGITS = OnDevices(ROWS, _LOGITS)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a step, called with a config, fixed arrays, inputs and donated arrays.

    Attributes:
      function: what it computes on a device.
      fixed: specs of the fixed arrays.
      inputs: specs of the inputs.
      donated: specs of the donated arrays.
      outputs: specs of the outputs.
    """

    function: Callable[..., tuple[Any, Any]]
    fixed: Any
    inputs: Any
    donated: Any
    outputs: Any

    def __call__(self, *args: Any, **options: Any) -> tuple[Any, Any]:
        """Computes it within a program."""
        return self.function(*args, **options)

    def stage(
        self,
        config: DecodeConfig,
        fixed: Any,
        inputs: Any,
        donated: Any = (),
        *,
        calls: int | None = None,
        **options: Any,
    ) -> Stage:
        """The stage to measure, on the devices that the config says.

        Args:
          config: what it is compiled for.
          fixed: its arrays, as `inputs` and `donated`.
          inputs: see `Stage`.
          donated: see `Stage`.
          calls: see `Stage`.
          options: static, for the function.
        """
        function, mesh = partial(self.function, config, **options), config.execution.mesh
        if mesh is None:
            return Stage(function, fixed, inputs, donated, calls)
        split = config.execution.split_drafter

        def known(spec: Any, part: Any) -> Any:
            return param_specs(config, part) if spec is PARAMS else specs_of(spec, split)

        def is_spec(x: Any) -> bool:
            return isinstance(x, P | OnDevices | _Params)

        specs = jax.tree.map(known, self.fixed, fixed, is_leaf=is_spec)
        others = (specs_of(each, split) for each in (self.inputs, self.donated, self.outputs))
        return Stage(function, fixed, inputs, donated, calls, Layout(mesh, specs, *others))


def part(
    *, outputs: Any, fixed: Any = ALL, inputs: Any = ALL, donated: Any = ALL
) -> Callable[[Callable[..., tuple[Any, Any]]], Part]:
    """Makes a function a part, given the specs of its arrays."""
    return lambda function: Part(function, fixed, inputs, donated, outputs)


def without_caches(state: DecodeState) -> DecodeState:
    """Returns the state without its two caches."""
    return dataclasses.replace(state, target_cache=(), draft_state=None)


@part(inputs=ROWS, outputs=ROWS)
def search_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """The search inside a program, with copies to the host and back if it runs there; where devices
    share a target one of them searches, as in the fused loop. fixed: the search; inputs: a host
    buffer; output: trees."""
    search = fixed.in_program
    searched = partial(once, search) if config.execution.shards > 1 else search
    return donated, searched(inputs)


@part(fixed=(PARAMS, CACHE), inputs=(STATE, ROWS), outputs=VERIFIED)
@exact_products
def verify_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """fixed: parameters, target cache; inputs: state, trees; output: `Verified`."""
    params, cache = fixed
    state, trees = inputs
    return donated, verify(config, params, dataclasses.replace(state, target_cache=cache), trees)


@part(inputs=(STATE, ROWS, VERIFIED), donated=CACHE, outputs=(ROWS, STATE))
def accept_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """inputs: state, trees, `Verified`; donated: target cache; outputs: `AcceptedPath`, state."""
    del fixed
    state, trees, verified = inputs
    state = dataclasses.replace(state, target_cache=donated)
    state, accepted = accept_and_compact(config, state, trees, verified)
    return state.target_cache, (accepted, without_caches(state))


@part(fixed=(PARAMS, DRAFT_ROWS), inputs=(ROWS, STATE), outputs=(DRAFT_LOGITS, DRAFT_ROWS))
@exact_products
def draft_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """fixed: parameters, drafter cache; inputs: `AcceptedPath`, state; outputs: logits, rows."""
    params, draft_state = fixed
    accepted, state = inputs
    inputs = draft_input(config, params, state, accepted)
    logits, _, rows = _dart(config).forward(draft_state, inputs)
    return donated, (logits, rows)


@part(inputs=DRAFT_LOGITS, outputs=ROWS)
def topk_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """fixed: the draft vocabulary; inputs: logits; outputs: ids and logits of the candidates."""
    vocabulary = Vocabulary(config.execution.drafter_shards)
    candidates, _ = _dart(config).top_candidates(fixed, inputs, vocabulary)
    return donated, candidates


@part(inputs=(ROWS, STATE, DRAFT_ROWS, ROWS), donated=DRAFT_ROWS, outputs=ROWS)
def pack_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """inputs: `AcceptedPath`, state, rows, candidates; donated: drafter cache; output: buffer."""
    del fixed
    accepted, state, rows, candidates = inputs
    packed = pack(config.host_buffer, state, accepted, candidates)
    return extend(donated, rows, accepted.start), packed


@part(fixed=PARAMS, inputs=(STATE, ROWS), donated=(CACHE, DRAFT_ROWS), outputs=ROWS)
def step_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """The whole step. fixed: parameters; inputs: state, trees; donated: both caches."""
    small, trees = inputs
    cache, draft_state = donated
    state = dataclasses.replace(small, target_cache=cache, draft_state=draft_state)
    state, packed = decode_step(config, fixed, state, trees)
    return (state.target_cache, state.draft_state), packed


def all_stages(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: jax.Array
) -> tuple[DecodeState, jax.Array]:
    """Runs all stages in turn, each as a program of its own; consumes the state and returns the
    same as `dart_jax.decoding.step.step`."""
    inputs, cache = (without_caches(state), trees), state.target_cache
    _, verified = verify_stage.stage(config, (params, cache), inputs)()
    cache, accepted = accept_stage.stage(config, (), (*inputs, verified), cache)()
    path, small = accepted
    _, (logits, rows) = draft_stage.stage(config, (params, state.draft_state), accepted)()
    _, candidates = topk_stage.stage(config, params["draft_ids"], logits)()
    inputs = (path, small, rows, candidates)
    draft_state, packed = pack_stage.stage(config, (), inputs, state.draft_state)()
    return dataclasses.replace(small, target_cache=cache, draft_state=draft_state), packed


def _dart(config: DecodeConfig) -> Dart:
    assert isinstance(config.drafting, Dart)
    return config.drafting
