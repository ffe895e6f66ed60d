"""The stages of a decode step as `eval.latency.clock.Stage` wants them.

A stage is a function of what is fixed, its inputs and what is moved, such as caches; it returns
what was moved and its outputs. What the timing loop must see first, since all depends on it, is the
first output. All but the step itself know DART's drafting alone.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax

from dart_jax.decoding.drafting.dart import Dart
from dart_jax.decoding.pruner import trees_inside
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import (
    accept_and_compact,
    draft_input,
    exact_products,
    pack,
    step,
    verify,
)
from dart_jax.models.cache import extend


def without_caches(state: DecodeState) -> DecodeState:
    """What changes, but for the two caches."""
    return dataclasses.replace(state, target_cache=(), memory=None)


def search_stage(
    config: DecodeConfig, native: bool, fixed: Any, inputs: Any, moved: Any
) -> tuple[Any, Any]:
    """To the host, search and back from inside a program; fixed: the pruner's handle; inputs: a
    handover; output: trees."""
    return moved, trees_inside(config.host_buffer, config.nodes, fixed, inputs, native=native)


@exact_products
def verify_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """fixed: parameters, target cache; inputs: state, trees; output: `Verified`."""
    params, cache = fixed
    state, trees = inputs
    return moved, verify(config, params, dataclasses.replace(state, target_cache=cache), trees)


def accept_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """inputs: state, trees, `Verified`; moved: target cache; outputs: `AcceptedPath`, state."""
    del fixed
    state, trees, verified = inputs
    state = dataclasses.replace(state, target_cache=moved)
    state, won = accept_and_compact(config, state, trees, verified)
    return state.target_cache, (won, without_caches(state))


@exact_products
def draft_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """fixed: parameters, drafter cache; inputs: `AcceptedPath`, state; outputs: logits, rows."""
    params, memory = fixed
    won, state = inputs
    known = draft_input(config, params, state, won, memory[0][0].shape[2])
    return moved, _dart(config).forward(memory, known)


def topk_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """fixed: the draft vocabulary; inputs: logits; outputs: ids and logits of the candidates."""
    return moved, _dart(config).top_candidates(fixed, inputs)


def pack_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """inputs: `AcceptedPath`, state, rows, candidates; moved: drafter cache; output: the host_buffer."""
    del fixed
    won, state, rows, candidates = inputs
    return extend(moved, rows, won.start), pack(config, state, won, *candidates)


def step_stage(config: DecodeConfig, fixed: Any, inputs: Any, moved: Any) -> tuple[Any, Any]:
    """The step itself; fixed: parameters; inputs: state, trees; moved: both caches."""
    small, trees = inputs
    cache, memory = moved
    state = dataclasses.replace(small, target_cache=cache, memory=memory)
    state, packed = step(config, fixed, state, trees)
    return (state.target_cache, state.memory), packed


@partial(jax.jit, static_argnames=("config",))
def together(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: jax.Array
) -> tuple[DecodeState, jax.Array]:
    """All stages in turn: what `dart_jax.decoding.step.step` gives."""
    given = (without_caches(state), trees)
    _, verified = verify_stage(config, (params, state.target_cache), given, ())
    cache, (won, small) = accept_stage(config, (), (*given, verified), state.target_cache)
    _, (logits, rows) = draft_stage(config, (params, state.memory), (won, small), ())
    _, candidates = topk_stage(config, params["draft_ids"], logits, ())
    memory, packed = pack_stage(config, (), (won, small, rows, candidates), state.memory)
    return dataclasses.replace(small, target_cache=cache, memory=memory), packed


def _dart(config: DecodeConfig) -> Dart:
    assert isinstance(config.drafting, Dart)
    return config.drafting
