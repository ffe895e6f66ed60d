"""The stages of a decode step as functions for `eval.latency.clock.Stage`.

A stage is a function of fixed arrays, inputs and donated arrays, such as caches; it returns the
donated arrays and its outputs. The timing loop reads the first output, so that one must depend on
the whole computation. All stages except the step itself support DART only, without pair scores.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax

from dart_jax.decoding.drafting.dart import Dart
from dart_jax.decoding.search.base import SearchInProgram
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
    """Returns the state without its two caches."""
    return dataclasses.replace(state, target_cache=(), draft_state=None)


def search_stage(search: SearchInProgram, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """The search inside a program, with copies to the host and back if it runs there. fixed: its
    argument; inputs: a host buffer; output: trees."""
    return donated, search(fixed, inputs)


@exact_products
def verify_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """fixed: parameters, target cache; inputs: state, trees; output: `Verified`."""
    params, cache = fixed
    state, trees = inputs
    return donated, verify(config, params, dataclasses.replace(state, target_cache=cache), trees)


def accept_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """inputs: state, trees, `Verified`; donated: target cache; outputs: `AcceptedPath`, state."""
    del fixed
    state, trees, verified = inputs
    state = dataclasses.replace(state, target_cache=donated)
    state, accepted = accept_and_compact(config, state, trees, verified)
    return state.target_cache, (accepted, without_caches(state))


@exact_products
def draft_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """fixed: parameters, drafter cache; inputs: `AcceptedPath`, state; outputs: logits, rows."""
    params, draft_state = fixed
    accepted, state = inputs
    inputs = draft_input(config, params, state, accepted)
    logits, _, rows = _dart(config).forward(draft_state, inputs)
    return donated, (logits, rows)


def topk_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """fixed: the draft vocabulary; inputs: logits; outputs: ids and logits of the candidates."""
    candidates, _ = _dart(config).top_candidates(fixed, inputs)
    return donated, candidates


def pack_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """inputs: `AcceptedPath`, state, rows, candidates; donated: drafter cache; output: buffer."""
    del fixed
    accepted, state, rows, candidates = inputs
    packed = pack(config.host_buffer, state, accepted, candidates)
    return extend(donated, rows, accepted.start), packed


def step_stage(config: DecodeConfig, fixed: Any, inputs: Any, donated: Any) -> tuple[Any, Any]:
    """The whole step. fixed: parameters; inputs: state, trees; donated: both caches."""
    small, trees = inputs
    cache, draft_state = donated
    state = dataclasses.replace(small, target_cache=cache, draft_state=draft_state)
    state, packed = step(config, fixed, state, trees)
    return (state.target_cache, state.draft_state), packed


@partial(jax.jit, static_argnames=("config",))
def all_stages(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: jax.Array
) -> tuple[DecodeState, jax.Array]:
    """Runs all stages in turn; returns the same as `dart_jax.decoding.step.step`."""
    inputs = (without_caches(state), trees)
    _, verified = verify_stage(config, (params, state.target_cache), inputs, ())
    cache, (accepted, small) = accept_stage(config, (), (*inputs, verified), state.target_cache)
    _, (logits, rows) = draft_stage(config, (params, state.draft_state), (accepted, small), ())
    _, candidates = topk_stage(config, params["draft_ids"], logits, ())
    inputs = (accepted, small, rows, candidates)
    draft_state, packed = pack_stage(config, (), inputs, state.draft_state)
    return dataclasses.replace(small, target_cache=cache, draft_state=draft_state), packed


def _dart(config: DecodeConfig) -> Dart:
    assert isinstance(config.drafting, Dart)
    return config.drafting
